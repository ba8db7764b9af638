"""Arithmetic on Python floats for references, without torch or numpy."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

Rows = list[list[float]]


def dot(x: Sequence[float], y: Sequence[float]) -> float:
    """The dot product of two vectors of equal length, rounded once."""
    return math.fsum(map(operator.mul, x, y))


def matvec(matrix: Sequence[Sequence[float]], x: Sequence[float]) -> list[float]:
    """The product of a matrix, given as a list of rows, and a vector."""
    return [dot(row, x) for row in matrix]


def softmax(scores: Sequence[float], may: Sequence[bool]) -> list[float]:
    """Softmax over the allowed keys and 0 elsewhere; all 0 if no key is allowed."""
    top = max((x for x, yes in zip(scores, may, strict=True) if yes), default=0.0)
    raw = [math.exp(x - top) if yes else 0.0 for x, yes in zip(scores, may, strict=True)]
    total = math.fsum(raw)
    return [x / total if total else 0.0 for x in raw]


def pooled(weights: Sequence[float], value: Rows) -> list[float]:
    """The weighted sum of the values; slots with weight 0 may hold anything, even NaN."""
    kept = [(w, row) for w, row in zip(weights, value, strict=True) if w]
    return [math.fsum(w * row[e] for w, row in kept) for e in range(len(value[0]))]


def attended(
    score: Callable[[list[float], list[float]], float],
    query: Rows,
    key: Rows,
    allowed: list[list[bool]],
) -> Rows:
    """The softmax weights of every query, one row each."""
    return [
        softmax([score(q, k) if yes else 0.0 for k, yes in zip(key, may, strict=True)], may)
        for q, may in zip(query, allowed, strict=True)
    ]
