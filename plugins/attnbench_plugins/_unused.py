"""Scores that depend on the key only: one row for all queries, still in the query's graph."""

from __future__ import annotations

from torch import Tensor


def for_every_query(scores: Tensor, query: Tensor) -> Tensor:
    """Expand scores ``(..., S)`` of the keys to ``(..., L, S)``, the same for each of L queries.

    The query adds an empty sum: exactly 0 whatever the query holds, with a gradient of 0.
    """
    return scores.unsqueeze(-2) + query[..., :0].sum(-1, keepdim=True).to(scores.dtype)
