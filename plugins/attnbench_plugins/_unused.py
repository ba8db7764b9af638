"""For scores that use the key alone: one row of them for all queries, in the graph of the query."""

from __future__ import annotations

from torch import Tensor

__all__ = ["for_every_query"]


def for_every_query(scores: Tensor, query: Tensor) -> Tensor:
    """Scores ``(..., S)`` of the keys as ``(..., L, S)``, the same for each of the L queries.

    The query adds a sum of no elements: exactly 0 whatever it holds, with a gradient of 0.
    """
    return scores.unsqueeze(-2) + query[..., :0].sum(-1, keepdim=True).to(scores.dtype)
