r"""Gaussian kernel: :math:`-\tfrac12 \lVert (q - k) \circ w \rVert^2` with a learned bandwidth w.

Sources: Nadaraya 1964, Watson 1964, whose kernel regression it is for scalars. For standard normal
q and k, half the squared distance is chi-squared with E degrees of freedom and variance 2E; a
bandwidth of :math:`(2E)^{-1/4}` gives variance 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

import attnbench
from attnbench.testing import widen


class GaussianScoring(nn.Module):
    """Score with the negative half squared distance of query and key, scaled by the bandwidth.

    Args:
        query_size: E.
        key_size: E, equal to ``query_size``.
        per_feature: learn one bandwidth per feature instead of one for all.
    """

    def __init__(self, query_size: int, key_size: int, *, per_feature: bool = False) -> None:
        super().__init__()
        self.bandwidth = nn.Parameter(torch.empty(query_size if per_feature else ()))
        self.initial = (2 * query_size) ** -0.25
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every bandwidth to the value that gives variance 1."""
        nn.init.constant_(self.bandwidth, self.initial)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of query ``(..., L, E)`` and key ``(..., S, E)``."""
        query, key, bandwidth = widen(query, key, self.bandwidth)
        # the difference first: q² − 2qk + k² loses all accuracy far from the origin
        distance = (query.unsqueeze(-2) - key.unsqueeze(-3)) * bandwidth
        return -0.5 * distance.square().sum(-1)


def _reference(module: GaussianScoring, q: list[float], k: list[float]) -> float:
    value = module.bandwidth.tolist()
    bandwidth = value if isinstance(value, list) else [value] * len(q)
    return -0.5 * math.fsum(((a - b) * w) ** 2 for a, b, w in zip(q, k, bandwidth, strict=True))


@attnbench.hookimpl
def attnbench_scorings() -> Iterable[attnbench.ScoringSpec]:
    """The scoring function ``gaussian``."""
    yield attnbench.ScoringSpec(
        name="gaussian",
        make=GaussianScoring,
        formula="−½ ‖(q − k) ∘ w‖²",
        source="Nadaraya 1964; Watson 1964",
        equal_sizes=True,
        reference=_reference,
        laws=(
            "unit_variance",
            "translation_invariant",
            "rotation_invariant",
            "monotone_in_distance",
        ),
    )
