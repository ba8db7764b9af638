r"""Dot product: :math:`q^\top k`, unscaled (Luong et al. 2015, arXiv:1508.04025).

Its variance is E, which is what the scale of ``scaled_dot`` is for.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

import attnbench
from attnbench.testing import widen
from attnbench_plugins._floats import dot


class DotScoring(nn.Module):
    """Score with the dot product."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, E)`` and key ``(..., S, E)``."""
        query, key = widen(query, key)
        return query @ key.mT


def _reference(_module: nn.Module, q: list[float], k: list[float]) -> float:
    return dot(q, k)


def _make(query_size: int, key_size: int) -> DotScoring:
    return DotScoring()


@attnbench.hookimpl
def attnbench_scorings() -> Iterable[attnbench.ScoringSpec]:
    """The scoring function ``dot``; it does not declare ``unit_variance``."""
    yield attnbench.ScoringSpec(
        name="dot",
        make=_make,
        formula="qᵀk",
        source="Luong et al. 2015, arXiv:1508.04025",
        equal_sizes=True,
        reference=_reference,
        laws=("rotation_invariant", "bilinear"),
    )
