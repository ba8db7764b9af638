r"""Self-attention without a query: one tanh unit of the key alone, :math:`\tanh(w^\top k + b)`.

It is bounded by 1, so no weight is more than e² times another. Its variance is that of a tanh,
below 1, so it does not declare ``unit_variance``. The weights do not depend on the query.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import attnbench
from attnbench.testing import widen
from attnbench_plugins._floats import dot
from attnbench_plugins._unused import for_every_query


class SelfTanhScoring(nn.Module):
    """Score a key with one tanh unit; the query is ignored.

    Args:
        query_size: Eq, ignored.
        key_size: Ek.
    """

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(key_size))
        self.bias = nn.Parameter(torch.empty(()))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the weight so that the unit's input has variance 1; the bias starts at 0."""
        nn.init.normal_(self.weight, std=len(self.weight) ** -0.5)
        nn.init.zeros_(self.bias)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, Eq)`` and key ``(..., S, Ek)``."""
        return self.score_projected(query, self.project_key(key))

    def project_key(self, key: Tensor) -> Tensor:
        """The part that a decoder caches per key: its score, ``(..., S, 1)``."""
        wide, weight, bias = widen(key, self.weight, self.bias)
        return (wide @ weight + bias).tanh().unsqueeze(-1)

    def score_projected(self, query: Tensor, projected: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, Eq)`` from key scores ``(..., S, 1)``."""
        return for_every_query(projected.squeeze(-1), query)


def _reference(module: SelfTanhScoring, _q: list[float], k: list[float]) -> float:
    weight: Any = module.weight.tolist()
    bias: Any = module.bias.tolist()  # a number, which torch's hints call a list
    return math.tanh(dot([*weight, bias], [*k, 1.0]))


@attnbench.hookimpl
def attnbench_scorings() -> Iterable[attnbench.ScoringSpec]:
    """The scoring function ``self_tanh``."""
    yield attnbench.ScoringSpec(
        name="self_tanh",
        make=SelfTanhScoring,
        formula="tanh(wᵀk + b)",
        source="tanh of a linear score of the key, as tutorials write it",
        reference=_reference,
        laws=("bounded_by_one", "query_independent"),
    )
