"""Average pooling: all allowed keys get the same weight; the baseline for all other scores."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

import attnbench
from attnbench_plugins._unused import for_every_query


class AverageScoring(nn.Module):
    """Score every pair with 0, so that all weights are equal."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``, all 0, of query ``(..., L, Eq)`` and key ``(..., S, Ek)``."""
        return for_every_query(key[..., :0].sum(-1), query)


@attnbench.hookimpl
def attnbench_scorings() -> Iterable[attnbench.ScoringSpec]:
    """The scoring function ``average``; its variance is 0, so it declares no ``unit_variance``."""
    yield attnbench.ScoringSpec(
        name="average",
        make=lambda query_size, key_size: AverageScoring(),
        formula="0",
        source="mean of the values, the baseline",
        reference=lambda module, q, k: 0.0,
        laws=("bounded_by_one", "query_independent", "translation_invariant"),
    )
