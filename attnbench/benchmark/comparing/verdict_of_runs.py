"""Verdicts on recorded runs: whether B is faster or slower than A, from their processes' times.

The unit of evidence is the process. The test is Welch's, on the logarithms of the processes' times;
if the runs of the two sides did not alternate, the drift between whole runs is added. The intervals
of a table hold simultaneously (Bonferroni). A verdict is read off its interval, so that the two
never disagree:

========== =========================================================================
same       the whole interval is within the margin
faster     the whole interval is below 0, and not all within the margin
slower     the whole interval is above 0, and not all within the margin
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
"""Largest probability of a false ``faster`` or ``slower`` in a row."""

TABLE_ERROR = 0.05
"""Largest probability of any false ``faster`` or ``slower`` in a table of unchanged rows."""

POWER = 0.95
"""Probability with which the smallest visible effect is detected."""

MIN_PROCESSES = 5
"""With fewer processes on a side, a row is ``ambiguous``."""

MARGIN = 0.05
"""Changes that are surely smaller than this share count as ``same``."""

DRIFT_SD = 0.03
"""Assumed standard deviation (log scale) between consecutive runs."""

TIMES_TAKEN_IN_TURN = 3
"""Changes of side in the order of runs, from which on the sides count as alternating."""


_MOST = math.log(1000)


@dataclass(frozen=True)
class Pair:
    """Two sides of one case.

    Args:
        key: identifies the row in the table.
        a_s, b_s: time of each process (or run) of either side, in seconds.
        alternated: whether each time is that of a whole run, and the runs alternated.
        runs: if not ``alternated``: number of alternating runs of each side that the processes
            belong to; the drift between runs averages out over them.
    """

    key: tuple[str, ...]
    a_s: tuple[float, ...]
    b_s: tuple[float, ...]
    alternated: bool = True
    runs: int = 1


@dataclass(frozen=True)
class Verdict:
    """The verdict on B against A in one row.

    Args:
        key: key of the pair.
        verdict: ``faster``, ``slower``, ``same`` or ``ambiguous``.
        effect: relative change of the time: 0.1 is 10 % slower.
        low, high: interval of the effect; the intervals of a table hold simultaneously.
        visible: smallest slowdown, at least the margin, that would have been called slower in 95
            of 100 comparisons; infinite with too few processes.
        a_s, b_s: geometric mean of the times of either side, in seconds.
        processes: number of times of A and of B.
        alternated: whether the runs of the two sides alternated.
        reason: why the verdict is ambiguous.
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
    """Whether the runs of two sides alternated, judged by their start times."""
    order = sorted([(start, "a") for start in a] + [(start, "b") for start in b])
    sides = [side for _, side in order]
    changes = sum(x != y for x, y in itertools.pairwise(sides))
    return changes >= TIMES_TAKEN_IN_TURN


def verdicts(pairs: Sequence[Pair], *, margin: float = MARGIN) -> list[Verdict]:
    """Give one verdict per pair, corrected for the number of pairs.

    Args:
        pairs: the whole table; leaving out rows afterwards invalidates the correction.
        margin: changes that are surely smaller than this share count as ``same``.
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
    # a change smaller than the margin may be called same
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
    """Convert a difference of logarithms to a relative change; infinite if it is absurdly large."""
    return math.expm1(log) if log < _MOST else math.inf


def _named(low: float, high: float, margin: float, processes: int) -> tuple[str, str]:
    if processes < MIN_PROCESSES:
        return "ambiguous", f"{processes} processes on a side; at least {MIN_PROCESSES} are needed"
    if -margin < low and high < margin:
        return "same", ""
    if low > 0:
        return "slower", ""
    if high < 0:
        return "faster", ""
    return "ambiguous", "the interval includes no change and changes beyond the margin"


def _own_error(
    a: Sequence[float], b: Sequence[float], *, drift: tuple[float, float] | None
) -> tuple[float, float]:
    """Welch's standard error of the processes' times, and its degrees of freedom."""
    if min(len(a), len(b)) < 2:
        return math.inf, 1.0
    parts = [(statistics.variance(side) / len(side), float(len(side) - 1)) for side in (a, b)]
    return _combined(parts if drift is None else [*parts, drift])


def _combined(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Square root of a sum of estimated variances, with Satterthwaite's degrees of freedom."""
    total = math.fsum(variance for variance, _ in parts)
    spread = math.fsum(variance**2 / df for variance, df in parts)
    return math.sqrt(total), total**2 / spread if spread else math.inf


def _tail(rows: int) -> float:
    """One-sided error probability of one row."""
    return min(ROW_ERROR, TABLE_ERROR / max(rows, 1)) / 2


@functools.cache
def _quantile(df: float, tail: float) -> float:
    from scipy import stats  # takes 0.3 s to import

    return float(stats.norm.isf(tail) if math.isinf(df) else stats.t.isf(tail, df))
