"""Scores of keys that were projected once, when they were appended to a cache.

The module of a scoring function may have the methods ``project_key(key)``, which returns
``(..., S, h)``, and ``score_projected(query, projected)``, which returns the scores; ``forward``
composes them. A layer then caches projected keys, so that a decoding step projects only its own
token, as in Bahdanau's decoder. For other scoring functions it caches the keys.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["over_kept", "project_key"]

_TERMS = 2**24
"""Most numbers in a temporary tensor; beyond it, queries are scored in blocks."""


def project_key(scoring: Any, key: Tensor) -> Tensor:
    """The projected keys that a cache stores, or the keys ``(B, H, S, D)`` themselves."""
    projected: Tensor = scoring.project_key(key) if hasattr(scoring, "project_key") else key
    return projected


def over_kept(scoring: nn.Module) -> nn.Module:
    """A scoring function of queries and the results of :func:`project_key`."""
    return _OverKept(scoring) if hasattr(scoring, "project_key") else scoring


class _OverKept(nn.Module):
    """Scores of queries and projected keys.

    Args:
        scoring: the module of the original scoring function.
    """

    def __init__(self, scoring: nn.Module) -> None:
        super().__init__()
        self.scoring: Any = scoring

    def forward(self, query: Tensor, kept: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of queries ``(..., L, D)`` and projected keys ``(..., S, h)``."""
        rows = max(1, _TERMS // max(1, kept.numel()))
        score, starts = self.scoring.score_projected, range(0, max(1, query.shape[-2]), rows)
        return torch.cat([score(query[..., i : i + rows, :], kept) for i in starts], -2)
