"""Scores of keys that were projected once, when they were appended to a cache.

A scoring function's module may have ``project_key(key)``, which gives ``(..., S, h)``, and
``score_projected(query, projected)``, which gives the scores; ``forward`` is one after the other.
A layer then keeps what the first gives, so that a step of decoding projects its own token only, as
in Bahdanau's decoder. Of other scoring functions the key itself is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["over_kept", "project_key"]

_TERMS = 2**24
"""Numbers in the largest temporary tensor; more queries than that are scored in blocks."""


def project_key(scoring: Any, key: Tensor) -> Tensor:
    """What a cache keeps of keys ``(B, H, S, D)``."""
    projected: Tensor = scoring.project_key(key) if hasattr(scoring, "project_key") else key
    return projected


def over_kept(scoring: nn.Module) -> nn.Module:
    """The scoring function as one of queries and what :func:`project_key` gave."""
    return _OverKept(scoring) if hasattr(scoring, "project_key") else scoring


class _OverKept(nn.Module):
    """Scores of queries and projected keys.

    Args:
        scoring: the whole scoring function.
    """

    def __init__(self, scoring: nn.Module) -> None:
        super().__init__()
        self.scoring: Any = scoring

    def forward(self, query: Tensor, kept: Tensor) -> Tensor:
        """Scores ``(..., L, S)`` of queries ``(..., L, D)`` and what was kept ``(..., S, h)``."""
        rows = max(1, _TERMS // max(1, kept.numel()))
        score, starts = self.scoring.score_projected, range(0, max(1, query.shape[-2]), rows)
        return torch.cat([score(query[..., i : i + rows, :], kept) for i in starts], -2)
