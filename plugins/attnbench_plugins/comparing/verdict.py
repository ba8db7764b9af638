"""The verdict on a row of pairs: one statistic, one estimate and one interval.

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

The limit is that of the whole table: if the changes are what the estimates say, what remains of
each pair has a random sign that is common to all its rows. Flipping the signs of whole pairs shows
what the largest statistic of the table becomes by chance. The looks share the error rate, and a row
that is decided at one look gets no further pairs.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

VERDICTS = ("slower", "slightly slower", "faster", "slightly faster", "same", "ambiguous")
"""Every verdict, in the order in which they are counted below a table."""

LOOKS = {15: 0.005, 30: 0.005, 60: 0.010}
"""Numbers of pairs after which rows are judged, and the error each look may spend: 2 % in all."""

MARGIN = 0.03
"""Changes that are smaller than this share count as small."""

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
        spread: standard deviation of a pair's value, as a share.
    """

    verdict: str = "ambiguous"
    effect: float = math.nan
    low: float = -1.0
    high: float = math.inf
    visible: float = math.inf
    spread: float = math.nan


def judge_pairs(values: Values, *, alpha: float, margin: float = MARGIN) -> list[Verdict]:
    """Judge the rows of a look.

    Args:
        values: logs of B's time over A's, ``(pairs, rows)``.
        alpha: largest probability that any unchanged row is called faster or slower.
        margin: changes smaller than this share count as small.
    """
    pairs = len(values)
    if pairs < 2 or 2.0 ** (1 - pairs) > alpha:  # no signs would be significant
        return [Verdict(effect=_change(float(center))) for center in values.mean(0)]
    limit = _limit_by_flips(values, alpha)
    spreads = values.std(0, ddof=1)
    return [
        _verdict(float(center), float(sd) / math.sqrt(pairs), limit, margin, float(sd))
        for center, sd in zip(values.mean(0), spreads, strict=True)
    ]


def _verdict(center: float, error: float, limit: float, margin: float, sd: float) -> Verdict:
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
    return Verdict(verdict, effect, low, high, visible, _change(sd))


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
