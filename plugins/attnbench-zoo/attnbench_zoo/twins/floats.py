"""Attention in Python floats, which the twins' references are made of."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["attend_by_floats"]


def attend_by_floats(
    query: list[list[float]],
    key: list[list[float]],
    value: list[list[float]],
    allowed: list[list[bool]],
    bias: Any = None,
) -> list[list[float]]:
    """Scaled dot-product attention of one item in Python floats.

    Args:
        query, key, value, allowed: rows.
        bias: ``bias(i, s)`` is added to the score of query ``i`` and key ``s``.
    """
    rows = []
    for i, q in enumerate(query):
        slots = [s for s in range(len(key)) if allowed[i][s]]
        scores = [
            math.fsum(a * b for a, b in zip(q, key[s], strict=True)) / math.sqrt(len(q))
            + (bias(i, s) if bias else 0.0)
            for s in slots
        ]
        weights = _softmax(scores) if slots else []
        rows.append(
            [
                math.fsum(w * value[s][e] for w, s in zip(weights, slots, strict=True))
                for e in range(len(value[0]))
            ]
        )
    return rows


def _softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    raw = [math.exp(score - top) for score in scores]
    total = math.fsum(raw)
    return [x / total for x in raw]
