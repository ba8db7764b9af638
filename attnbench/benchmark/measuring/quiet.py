"""Quiet or busy: readings of a machine's sentinels, and what they say of a measurement."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["TOLERANCE", "Reading", "idle"]

TOLERANCE = 0.10
"""A measurement is void if a sentinel is off its idle value by more than this share."""


@dataclass(frozen=True)
class Reading:
    """What one look at the machine gave.

    Args:
        copy_s: seconds of the sentinels' copy.
        matmul_s: seconds of their matrix product.
    """

    copy_s: float
    matmul_s: float

    def off(self, quiet: Reading) -> float:
        """By which share it is off an idle reading; the worse of the two.

        A faster product says that the clock has changed. A faster copy says nothing: how fast it is
        depends on the memory that a process was given, by a quarter where much was in use before.
        """
        copy, matmul = self.copy_s / quiet.copy_s - 1, self.matmul_s / quiet.matmul_s - 1
        return max(copy, abs(matmul))


def idle(readings: Iterable[Reading]) -> Reading:
    """The reading of a quiet machine: the median of the faster half of several."""

    def quiet(values: list[float]) -> float:
        return statistics.median(sorted(values)[: (len(values) + 1) // 2])

    readings = list(readings)
    return Reading(quiet([r.copy_s for r in readings]), quiet([r.matmul_s for r in readings]))
