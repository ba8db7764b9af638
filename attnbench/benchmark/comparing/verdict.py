"""The verdict on a row: one statistic, one estimate and one interval, for pairs and recorded runs.

The estimate is the mean log of B's time over A's, and the statistic is its distance from the tested
change, in standard errors. A limit is found for the statistic that unchanged rows exceed with a
stated probability. The interval is the test inverted: it contains every change whose statistic is
within the limit, so it excludes 0 exactly where the verdict is faster or slower, slightly or not.

=============== ===================================================================================
faster, slower  the interval excludes 0, and the effect is beyond the margin
slightly faster the interval excludes 0, and the effect is within the margin
slightly slower the same
same            the interval contains 0, and all of it is within the margin
ambiguous       the interval contains 0 and changes beyond the margin
=============== ===================================================================================

Where sides were measured in pairs, the limit is that of the whole table: if the changes are what
the estimates say, what remains of each pair has a random sign that is common to all its rows.
Flipping the signs of whole pairs shows what the largest statistic of the table becomes by chance.
The looks share the error rate, and a row that is decided at one look gets no further pairs.

The processes of recorded runs are few and not paired. Their limit is Student's (Welch's test),
divided among the rows; if the runs of the two sides did not alternate, the drift between whole runs
is added to the error.
"""

from __future__ import annotations

import functools
import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attnbench.benchmark.timing.blocks import student_quantile

VERDICTS = ("slower", "slightly slower", "faster", "slightly faster", "same", "ambiguous")
"""Every verdict, in the order in which they are counted below a table."""

LOOKS = {15: 0.005, 30: 0.005, 60: 0.010}
"""Numbers of pairs after which rows are judged, and the error each look may spend: 2 % in all."""

MARGIN = 0.03
"""Changes measured in pairs that are smaller than this share count as small."""

RUNS_MARGIN = 0.05
"""The same for recorded runs."""

ROW_ERROR = 0.01
"""Recorded runs: largest probability that an unchanged row is called faster or slower."""

TABLE_ERROR = 0.05
"""Recorded runs: largest probability that any row of an unchanged table is called so."""

MIN_PROCESSES = 5
"""With fewer processes on a side, a row of recorded runs is ``ambiguous``."""

DRIFT_SD = 0.03
"""Assumed standard deviation (log scale) between consecutive runs."""

_TIMES_IN_TURN = 3
"""Changes of side in the order of runs, from which on the sides count as alternating."""

_FLIPS = 4999
_POWER_Z = 1.645  # detected in 95 of 100
_MAX_LOG = math.log(1000)

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """The verdict on B against A in one row.

    Args:
        verdict: one of :data:`VERDICTS`.
        effect: relative change of the time: 0.1 is 10 % slower.
        low, high: interval of the effect; the intervals of a table hold simultaneously.
        visible: smallest change that would have been called in 95 of 100 comparisons.
        spread: standard deviation of a pair's value, as a share; NaN for recorded runs.
        reason: why nothing can be concluded, if there is a special reason.
    """

    verdict: str
    effect: float
    low: float
    high: float
    visible: float
    spread: float = math.nan
    reason: str = ""


@dataclass(frozen=True)
class Sides:
    """The recorded times of one row.

    Args:
        a_s, b_s: time of each process (or run) of either side, in seconds.
        alternated: whether each time is that of a whole run, and the runs alternated.
        runs: if not ``alternated``: number of alternating runs of each side that the processes
            belong to; the drift between runs averages out over them.
    """

    a_s: tuple[float, ...]
    b_s: tuple[float, ...]
    alternated: bool = True
    runs: int = 1


def judge_pairs(values: Values, *, alpha: float, margin: float = MARGIN) -> list[Verdict]:
    """Judge the rows of a look.

    Args:
        values: logs of B's time over A's, ``(pairs, rows)``.
        alpha: largest probability that any unchanged row is called faster or slower.
        margin: changes smaller than this share count as small.
    """
    pairs = len(values)
    if pairs < 2 or 2.0 ** (1 - pairs) > alpha:  # no signs would be significant
        return [_no_verdict(float(center), "") for center in values.mean(0)]
    limit = _limit_by_flips(values, alpha)
    spreads = values.std(0, ddof=1)
    return [
        _verdict(float(center), float(sd) / math.sqrt(pairs), limit, margin, float(sd))
        for center, sd in zip(values.mean(0), spreads, strict=True)
    ]


def judge_runs(rows: Sequence[Sides], *, margin: float = RUNS_MARGIN) -> list[Verdict]:
    """Judge rows of recorded runs.

    Args:
        rows: the whole table; leaving out rows afterwards invalidates the correction.
        margin: changes smaller than this share count as small.
    """
    return [_judge_run(row, len(rows), margin) for row in rows]


def _judge_run(row: Sides, rows: int, margin: float) -> Verdict:
    logs = [[math.log(time) for time in side] for side in (row.a_s, row.b_s)]
    center = statistics.fmean(logs[1]) - statistics.fmean(logs[0])
    count = min(map(len, logs))
    if count < MIN_PROCESSES:
        reason = f"{count} processes on a side; at least {MIN_PROCESSES} are needed"
        return _no_verdict(center, reason)
    parts = [(statistics.variance(side) / len(side), len(side) - 1.0) for side in logs]
    if not row.alternated:
        parts.append((2 * DRIFT_SD**2 / row.runs, math.inf))
    total = math.fsum(variance for variance, _ in parts)
    spread = math.fsum(variance**2 / df for variance, df in parts)  # Satterthwaite
    tail = min(ROW_ERROR, TABLE_ERROR / rows) / 2
    return _verdict(
        center,
        math.sqrt(total),
        student_quantile(total**2 / spread if spread else math.inf, tail),
        margin,
    )


def _verdict(
    center: float, error: float, limit: float, margin: float, sd: float = math.nan
) -> Verdict:
    """The verdict of an estimate on the log scale, its standard error, and the limit."""
    half = limit * error
    effect, low, high = (_change(x) for x in (center, center - half, center + half))
    if low > 0 or high < 0:
        verdict = "slower" if low > 0 else "faster"
        if abs(effect) <= margin:
            verdict = f"slightly {verdict}"
    else:
        verdict = "same" if -margin < low and high < margin else "ambiguous"
    visible = _change(max(half, math.log1p(margin)) + _POWER_Z * error)
    spread = math.nan if math.isnan(sd) else _change(sd)
    return Verdict(verdict, effect, low, high, visible, spread)


def _no_verdict(center: float, reason: str) -> Verdict:
    return Verdict("ambiguous", _change(center), -1.0, math.inf, math.inf, reason=reason)


def _change(log: float) -> float:
    """Convert a difference of logarithms to a relative change; infinite if it is absurdly large."""
    return math.expm1(log) if log < _MAX_LOG else math.inf


def _limit_by_flips(values: Values, alpha: float) -> float:
    """The value that the table's largest absolute t exceeds by chance in a share ``alpha``."""
    pairs = len(values)
    residuals = values - values.mean(0)
    means = _signs(pairs) @ residuals / pairs
    squares = (residuals**2).sum(0)  # the same for every flip
    variances = np.maximum(squares - pairs * means**2, 1e-300) / (pairs - 1)
    largest = np.abs(means / np.sqrt(variances / pairs)).max(1)
    place = math.ceil((1 - alpha) * (_FLIPS + 1)) - 1  # the table itself counts as one of the flips
    return float(np.sort(largest)[min(place, _FLIPS - 1)])


@functools.lru_cache(maxsize=4)
def _signs(pairs: int) -> Values:
    return np.random.default_rng(0).choice((-1.0, 1.0), size=(_FLIPS, pairs))


def taken_in_turn(a: Iterable[float], b: Iterable[float]) -> bool:
    """Whether the runs of two sides alternated, judged by their start times."""
    order = sorted([(start, "a") for start in a] + [(start, "b") for start in b])
    changes = sum(x != y for (_, x), (_, y) in itertools.pairwise(order))
    return changes >= _TIMES_IN_TURN
