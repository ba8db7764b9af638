r"""Bilinear, "general", "multiplicative" score :math:`q^\top W k / (E_q E_k)^{1/4}`.

Source: Luong et al. 2015, arXiv:1508.04025. With the obvious ``W ~ N(0, 1)`` the fourth root is the
wrong scale, and the variance would be √(Eq·Ek); with a standard deviation of
:math:`(E_q E_k)^{-1/4}` the variance is 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

import attnbench
from attnbench.testing import widen
from attnbench_plugins._floats import dot, matvec


class BilinearScoring(nn.Module):
    """Score with a matrix between query and key.

    Args:
        query_size: Eq.
        key_size: Ek, which may differ.
    """

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(query_size, key_size))
        self.scale = math.pow(query_size * key_size, -0.25)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the matrix so that scores of standard normal inputs have variance 1."""
        nn.init.normal_(self.weight, std=self.scale)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, Eq)`` and key ``(..., S, Ek)``."""
        query, key, weight = widen(query, key, self.weight)
        return (query @ (weight * self.scale)) @ key.mT


def _reference(module: BilinearScoring, q: list[float], k: list[float]) -> float:
    return dot(q, matvec(module.weight.tolist(), k)) / math.pow(len(q) * len(k), 0.25)


@attnbench.hookimpl
def attnbench_scorings() -> Iterable[attnbench.ScoringSpec]:
    """The scoring function ``bilinear``."""
    yield attnbench.ScoringSpec(
        name="bilinear",
        make=BilinearScoring,
        formula="qᵀWk / (Eq·Ek)^¼",
        source="Luong et al. 2015, arXiv:1508.04025",
        reference=_reference,
        laws=("unit_variance", "bilinear"),
    )
