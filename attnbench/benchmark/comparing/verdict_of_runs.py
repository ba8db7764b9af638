"""Verdicts on recorded runs: is B faster or slower than A, from the times of their processes.

The unit of evidence is the process. The test is Welch's, on the logarithms of the processes' times;
what whole runs drift by is added where runs of both sides did not take turns. The intervals of a
table hold all at once (Bonferroni), and a verdict is read off its interval, so that the two never
disagree:

========== =========================================================================
same       the whole interval lies within the margin
faster     the whole interval lies below no change, and not within the margin
slower     likewise above
ambiguous  anything else: too noisy, too few processes, or an effect near the margin
========== =========================================================================
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

__all__ = [
    "DRIFT_SD",
    "MARGIN",
    "MIN_PROCESSES",
    "ROW_ERROR",
    "TABLE_ERROR",
    "Pair",
    "Verdict",
    "taken_in_turn",
    "verdicts",
]

ROW_ERROR = 0.01
"""Most chance of a false faster or slower in a row."""

TABLE_ERROR = 0.05
"""Most chance of one in a table of unchanged cases."""

POWER = 0.95
"""Chance with which the smallest visible effect is seen."""

MIN_PROCESSES = 5
"""Processes a side below which nothing is concluded."""

MARGIN = 0.05
"""A change smaller than this share is called same, if that much is sure."""

DRIFT_SD = 0.03
"""Spread (log scale) that is assumed between two runs one after the other."""

TIMES_TAKEN_IN_TURN = 3
"""How often the sides must have changed places for their runs to count as alternated."""


_MOST = math.log(1000)


@dataclass(frozen=True)
class Pair:
    """Two sides of one case.

    Args:
        key: names the case in the table; the calibration is looked up by it too.
        a_s, b_s: process medians of either side, in seconds.
        alternated: whether each process was a run of its own, in turn with the other side's.
        runs: of either side, in turn, that the processes belong to where they are not; what a run
            drifts by is averaged over them.
    """

    key: tuple[str, ...]
    a_s: tuple[float, ...]
    b_s: tuple[float, ...]
    alternated: bool = True
    runs: int = 1


@dataclass(frozen=True)
class Verdict:
    """What is to be said of B against A in one case.

    Args:
        key: of the pair.
        verdict: ``faster``, ``slower``, ``same`` or ``ambiguous``.
        effect: change of the time as a share: 0.1 is 10 % slower.
        low, high: its interval; those of a table hold all at once.
        visible: the smallest slowdown, not below the margin, that would have been called slower
            in 95 of 100; infinite with too few processes.
        a_s, b_s: geometric means of the process medians, in seconds.
        processes: of either side.
        alternated: whether the sides took turns.
        reason: why it is ambiguous.
    """

    key: tuple[str, ...]
    verdict: str
    effect: float
    low: float
    high: float
    visible: float
    a_s: float
    b_s: float
    processes: tuple[int, int]
    alternated: bool
    reason: str = field(default="")


def taken_in_turn(a: Iterable[float], b: Iterable[float]) -> bool:
    """Whether the runs of two sides alternated, from the times at which they started."""
    order = sorted([(start, "a") for start in a] + [(start, "b") for start in b])
    sides = [side for _, side in order]
    changes = sum(x != y for x, y in itertools.pairwise(sides))
    return changes >= TIMES_TAKEN_IN_TURN


def verdicts(pairs: Sequence[Pair], *, margin: float = MARGIN) -> list[Verdict]:
    """One verdict a pair, corrected for the number of pairs.

    Args:
        pairs: the whole table; leaving rows out afterwards spoils the correction.
        margin: changes smaller than this share are the same.
    """
    return [_verdict(pair, len(pairs), margin) for pair in pairs]


def _verdict(pair: Pair, rows: int, margin: float) -> Verdict:
    n_a, n_b = len(pair.a_s), len(pair.b_s)
    logs_a, logs_b = ([math.log(t) for t in side] for side in (pair.a_s, pair.b_s))
    center = statistics.fmean(logs_b) - statistics.fmean(logs_a)
    drift = None if pair.alternated else (2 * DRIFT_SD**2 / pair.runs, math.inf)
    error, df = _own_error(logs_a, logs_b, drift=drift)
    tail = _tail(rows)
    half = _quantile(df, tail) * error
    visible = _change((_quantile(df, tail) + _quantile(df, 1 - POWER)) * error)
    # a smaller change may be called same
    visible = max(visible, margin) if min(n_a, n_b) >= MIN_PROCESSES else math.inf
    low, high = _change(center - half), _change(center + half)
    verdict, reason = _named(low, high, margin, min(n_a, n_b))
    return Verdict(
        key=pair.key,
        verdict=verdict,
        effect=_change(center),
        low=low,
        high=high,
        visible=visible,
        a_s=math.exp(statistics.fmean(logs_a)),
        b_s=math.exp(statistics.fmean(logs_b)),
        processes=(n_a, n_b),
        alternated=pair.alternated,
        reason=reason,
    )


def _change(log: float) -> float:
    """The change as a share, of a difference of logarithms; infinite where it means nothing."""
    return math.expm1(log) if log < _MOST else math.inf


def _named(low: float, high: float, margin: float, processes: int) -> tuple[str, str]:
    if processes < MIN_PROCESSES:
        return "ambiguous", f"{processes} processes on a side, but at least {MIN_PROCESSES} count"
    if -margin < low and high < margin:
        return "same", ""
    if low > 0:
        return "slower", ""
    if high < 0:
        return "faster", ""
    return "ambiguous", "the interval holds both no change and changes beyond the margin"


def _own_error(
    a: Sequence[float], b: Sequence[float], *, drift: tuple[float, float] | None
) -> tuple[float, float]:
    """Welch's standard error from the processes themselves, and its degrees of freedom."""
    if min(len(a), len(b)) < 2:
        return math.inf, 1.0
    parts = [(statistics.variance(side) / len(side), float(len(side) - 1)) for side in (a, b)]
    return _combined(parts if drift is None else [*parts, drift])


def _combined(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Root of a sum of estimated variances, with Satterthwaite's degrees of freedom."""
    total = math.fsum(variance for variance, _ in parts)
    spread = math.fsum(variance**2 / df for variance, df in parts)
    return math.sqrt(total), total**2 / spread if spread else math.inf


def _tail(rows: int) -> float:
    """Chance of an error on one side of one row."""
    return min(ROW_ERROR, TABLE_ERROR / max(rows, 1)) / 2


@functools.cache
def _quantile(df: float, tail: float) -> float:
    from scipy import stats  # takes 0.3 s to import

    return float(stats.norm.isf(tail) if math.isinf(df) else stats.t.isf(tail, df))
