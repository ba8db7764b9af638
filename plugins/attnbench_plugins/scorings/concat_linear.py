r"""Linear score of the concatenated query and key: :math:`w^\top [q; k] + b`.

It equals ``vector_sum`` with a bias. Softmax removes the query's term and the bias, which are the
same for every key, so the weights do not depend on the query. No concatenation is materialised.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import attnbench
from attnbench.testing import widen
from attnbench_plugins._floats import dot


class ConcatLinearScoring(nn.Module):
    """Score with one linear unit over ``[query; key]``.

    Args:
        query_size: Eq.
        key_size: Ek, which may differ.
    """

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.query_size = query_size
        self.weight = nn.Parameter(torch.empty(query_size + key_size))
        self.bias = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weight; query and key each add a variance of 1/2, and the bias is 0."""
        weight = self.weight.detach()
        for part in (weight[: self.query_size], weight[self.query_size :]):
            nn.init.normal_(part, std=(2 * len(part)) ** -0.5)
        nn.init.zeros_(self.bias)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, Eq)`` and key ``(..., S, Ek)``."""
        return self.score_projected(query, self.project_key(key))

    def project_key(self, key: Tensor) -> Tensor:
        """The part of the score that a decoder caches per key: its term, ``(..., S, 1)``."""
        key, weight = widen(key, self.weight)
        return (key @ weight[self.query_size :]).unsqueeze(-1)

    def score_projected(self, query: Tensor, projected: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, Eq)`` and the keys' parts ``(..., S, 1)``."""
        query, weight, bias = widen(query, self.weight, self.bias)
        return (query @ weight[: self.query_size] + bias).unsqueeze(-1) + projected.mT


def _reference(module: ConcatLinearScoring, q: list[float], k: list[float]) -> float:
    weight: Any = module.weight.tolist()
    bias: Any = module.bias.tolist()  # a number, which torch's hints call a list
    return dot([*weight, bias], [*q, *k, 1.0])


@attnbench.hookimpl
def attnbench_scorings() -> Iterable[attnbench.ScoringSpec]:
    """The scoring function ``concat_linear``."""
    yield attnbench.ScoringSpec(
        name="concat_linear",
        make=ConcatLinearScoring,
        formula="wᵀ[q; k] + b",
        source="linear score of the concatenation, as tutorials write it",
        reference=_reference,
        laws=("unit_variance", "query_independent"),
    )
