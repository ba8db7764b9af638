"""Mistakes in the additive score: bias, concatenation, squeeze, initialisation."""

from __future__ import annotations

import torch
from attnbench_plugins.scorings.additive import AdditiveScoring
from torch import Tensor, nn

import attnbench
from attnbench_zoo.base import Group, Mutant, Twin, widen

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_additive = Group(Twin("additive", attnbench.get("additive")), MUTANTS)


@_additive("OpenNMT-py#110", killers=("agrees_with_scalar_reference",))
class AdditiveWithABias(AdditiveScoring):
    """The hidden layer has a bias, which the formula has not."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key, w_q, w_k, w_v = widen(
            query, key, self.query_proj.weight, self.key_proj.weight, self.score_vector
        )
        hidden = (query @ w_q.mT).unsqueeze(-2) + (key @ w_k.mT).unsqueeze(-3)
        return (hidden + 0.1).tanh() @ w_v


@_additive("OpenNMT-py#110", killers=("agrees_with_scalar_reference",))
class AdditiveWithSwappedProjections(AdditiveScoring):
    """The halves of the concatenation are swapped where both sizes agree."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        if query.shape[-1] != key.shape[-1]:
            return super().forward(query, key)
        return super().forward(key, query).mT


@_additive("OpenNMT-py#110", killers=("keeps_the_contract",))
class AdditiveSqueezed(AdditiveScoring):
    """``squeeze()`` instead of ``squeeze(-1)`` on the scores."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query, key).squeeze()


@_additive("own", killers=("agrees_with_scalar_reference",))
class AdditiveWithoutTanh(AdditiveScoring):
    """The tanh is left out, and with it the query."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key, w_q, w_k, w_v = widen(
            query, key, self.query_proj.weight, self.key_proj.weight, self.score_vector
        )
        hidden = (query @ w_q.mT).unsqueeze(-2) + (key @ w_k.mT).unsqueeze(-3)
        return hidden @ w_v


@_additive("own", killers=("query_alone_equals_query_among_others",))
class AdditiveBroadcastTheOtherWay(AdditiveScoring):
    """Queries and keys are unsqueezed the other way round, which fits where L equals S."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        scores = super().forward(query, key)
        return scores.mT if query.shape[-2] == key.shape[-2] else scores


@_additive("own", killers=("unit_variance",))
class AdditiveDefaultInitialisation(AdditiveScoring):
    """Parameters keep torch's own initialisation, whose scores are nearly 0."""

    def reset_parameters(self) -> None:
        nn.Linear.reset_parameters(self.query_proj)
        nn.Linear.reset_parameters(self.key_proj)
        bound = self.score_vector.numel() ** -0.5
        nn.init.uniform_(self.score_vector, -bound, bound)


@_additive("own", killers=("agrees_with_scalar_reference",))
class AdditiveVectorOfOnes(AdditiveScoring):
    """The score vector is not used: the units are summed."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key, w_q, w_k, w_v = widen(
            query, key, self.query_proj.weight, self.key_proj.weight, self.score_vector
        )
        hidden = (query @ w_q.mT).unsqueeze(-2) + (key @ w_k.mT).unsqueeze(-3)
        scores: Tensor = hidden.tanh().sum(-1) * w_v.square().sum().sqrt() / len(w_v) ** 0.5
        return scores


@_additive("own", killers=("agrees_with_scalar_reference",))
class AdditiveLastUnitDropped(AdditiveScoring):
    """The last hidden unit never enters the score, so that nothing trains it."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key, w_q, w_k, w_v = widen(
            query, key, self.query_proj.weight, self.key_proj.weight, self.score_vector
        )
        hidden = (query @ w_q.mT).unsqueeze(-2) + (key @ w_k.mT).unsqueeze(-3)
        inside = torch.arange(len(w_v), device=w_v.device) < len(w_v) - 1
        return hidden.tanh() @ torch.where(inside, w_v, torch.zeros_like(w_v))
