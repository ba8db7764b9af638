r"""Scaled dot product: :math:`q^\top k / \sqrt{E}` (Vaswani et al. 2017, arXiv:1706.03762)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor, nn

import attnbench
from attnbench.testing import widen
from attnbench_plugins._floats import dot


class ScaledDotScoring(nn.Module):
    """Score with the dot product divided by the square root of the size.

    The query is scaled before the product, since the unscaled product could overflow float16.
    """

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, E)`` and key ``(..., S, E)``."""
        query, key = widen(query, key)
        return (query / math.sqrt(query.shape[-1])) @ key.mT


def _reference(_module: nn.Module, q: list[float], k: list[float]) -> float:
    return dot(q, k) / math.sqrt(len(q))


def _make(query_size: int, key_size: int) -> ScaledDotScoring:
    return ScaledDotScoring()


@attnbench.hookimpl
def attnbench_scorings() -> Iterable[attnbench.ScoringSpec]:
    """The scoring function ``scaled_dot``."""
    yield attnbench.ScoringSpec(
        name="scaled_dot",
        make=_make,
        formula="qᵀk / √E",
        source="Vaswani et al. 2017, arXiv:1706.03762",
        equal_sizes=True,
        reference=_reference,
        laws=("unit_variance", "rotation_invariant", "bilinear"),
    )
