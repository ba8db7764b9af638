"""The textbook's attention in Python floats, to which a callee is held that computes it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

Rows = list[list[float]]


def scaled_dot_rows(
    module: object, query: Rows, key: Rows, value: Rows, allowed: list[list[bool]]
) -> Rows:
    """The output's rows: softmax of ``q·k / √E`` over the keys left, times their values."""

    def score(q: list[float], k: list[float]) -> float:
        return float(len(q) ** -0.5 * math.fsum(map(operator.mul, q, k)))

    return pooled_rows(score, query, key, value, allowed)


SCALED_DOT: Mapping[str, Any] = {
    "formula": "softmax(q·k / √E) v",
    "equal_sizes": True,
    "reference": scaled_dot_rows,
    "laws": ("pools_values",),
}
"""The fields of a spec of a function that computes scaled dot-product attention."""


def pooled_rows(
    score: Callable[[list[float], list[float]], float],
    query: Rows,
    key: Rows,
    value: Rows,
    allowed: list[list[bool]],
) -> Rows:
    """The softmax of a score over the keys left, times their values."""
    found = []
    for row, may in zip(query, allowed, strict=True):
        slots = [slot for slot, left in enumerate(may) if left]
        scores = [score(row, key[slot]) for slot in slots]
        top = max(scores, default=0.0)
        weights = [math.exp(score - top) for score in scores]
        total = math.fsum(weights) or 1.0
        columns = zip(*(value[slot] for slot in slots), strict=True)
        pooled = [math.fsum(map(operator.mul, weights, each)) / total for each in columns]
        found.append(pooled if slots else [0.0] * len(value[0]))
    return found


def is_found(reference: object) -> bool:
    """Whether a reference is of a formula that was found by trying, which says so."""
    return getattr(getattr(reference, "__self__", None), "is_found", False)
