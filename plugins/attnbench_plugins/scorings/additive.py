r"""Additive score: a network with one hidden layer, :math:`w_v^\top \tanh(W_q q + W_k k)`.

Source: Bahdanau, Cho and Bengio 2015, arXiv:1409.0473. This plain form needs a tensor
``(..., L, S, h)``; the kernel ``additive/factorised`` computes the same without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

import attnbench
from attnbench.testing import widen
from attnbench_plugins._floats import dot, matvec
from attnbench_plugins._projection import Projection
from attnbench_plugins.scorings._tanh import tanh_moment


class AdditiveScoring(nn.Module):
    """Score with a hidden layer of tanh units over the projected query and key.

    Args:
        query_size: Eq.
        key_size: Ek, which may differ.
        hidden_size: h, the number of hidden units.
    """

    def __init__(self, query_size: int, key_size: int, *, hidden_size: int = 16) -> None:
        super().__init__()
        if hidden_size < 1:
            raise attnbench.SpecError(f"additive: hidden_size = {hidden_size}, but is at least 1.")
        self.query_proj = Projection(query_size, hidden_size)
        self.key_proj = Projection(key_size, hidden_size)
        self.score_vector = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise all parameters so that scores of standard normal inputs have variance 1."""
        sizes = self.query_proj.in_features, self.key_proj.in_features
        for proj, size in zip((self.query_proj, self.key_proj), sizes, strict=True):
            nn.init.normal_(proj.weight, std=(2 * size) ** -0.5)
        moment = tanh_moment(*((size, 0.5) for size in sizes))
        nn.init.normal_(self.score_vector, std=(moment * self.score_vector.numel()) ** -0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, Eq)`` and key ``(..., S, Ek)``."""
        return self.score_projected(query, self.project_key(key))

    def project_key(self, key: Tensor) -> Tensor:
        """The part of the score that a decoder caches per key: ``W_k k``, ``(..., S, h)``."""
        key, w_k = widen(key, self.key_proj.weight)
        return key @ w_k.mT

    def score_projected(self, query: Tensor, projected: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, Eq)`` and projected keys ``(..., S, h)``."""
        query, w_q, w_v = widen(query, self.query_proj.weight, self.score_vector)
        return ((query @ w_q.mT).unsqueeze(-2) + projected.unsqueeze(-3)).tanh() @ w_v


def _reference(module: AdditiveScoring, q: list[float], k: list[float]) -> float:
    queries = matvec(module.query_proj.weight.tolist(), q)
    keys = matvec(module.key_proj.weight.tolist(), k)
    hidden = [math.tanh(a + b) for a, b in zip(queries, keys, strict=True)]
    return dot(module.score_vector.tolist(), hidden)


@attnbench.hookimpl
def attnbench_scorings() -> Iterable[attnbench.ScoringSpec]:
    """The scoring function ``additive``."""
    yield attnbench.ScoringSpec(
        name="additive",
        make=AdditiveScoring,
        formula="w_vᵀ tanh(W_q q + W_k k)",
        source="Bahdanau et al. 2015, arXiv:1409.0473",
        reference=_reference,
        laws=("unit_variance",),
    )
