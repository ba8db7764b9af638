"""Scaled dot-product attention in Python floats: what adapted functions are held to."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

Rows = list[list[float]]


def scaled_dot_rows(
    module: object, query: Rows, key: Rows, value: Rows, allowed: list[list[bool]]
) -> Rows:
    """The output's rows: softmax of ``q·k / √E`` over the keys left, times their values."""
    return [_row(q, key, value, may) for q, may in zip(query, allowed, strict=True)]


SCALED_DOT: Mapping[str, Any] = {
    "formula": "softmax(q·k / √E) v",
    "equal_sizes": True,
    "reference": scaled_dot_rows,
    "laws": ("pools_values",),
}
"""The fields of a spec of a function that computes scaled dot-product attention."""


def _row(q: list[float], key: Rows, value: Rows, may: list[bool]) -> list[float]:
    slots = [s for s, left in enumerate(may) if left]
    scale = len(q) ** -0.5
    scores = [scale * math.fsum(map(operator.mul, q, key[s])) for s in slots]
    top = max(scores, default=0.0)
    weights = [math.exp(score - top) for score in scores]
    total = math.fsum(weights) or 1.0
    return [
        math.fsum(weight * value[s][e] for weight, s in zip(weights, slots, strict=True)) / total
        for e in range(len(value[0]))
    ]
