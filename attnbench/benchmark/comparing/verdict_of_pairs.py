"""The test of a comparison in pairs: a sign-flip test over the whole table, at a few looks.

If nothing changed, the sign of each pair is random and common to all its rows. The test therefore
compares the largest absolute t over the table with the values that it takes after the signs of
whole pairs are flipped at random. This keeps the correlation between rows, and the error rate is
that of the whole table.

The looks share the error rate. A row that is decided at one look gets no further pairs.

========== ====================================================================================
same       the interval is within the margin, or the effect is significant and within the margin
faster     the effect is significant and below the margin
slower     the effect is significant and above the margin
ambiguous  none of these
========== ====================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["LOOKS", "MARGIN", "Judged", "hodges_lehmann", "judge"]

LOOKS = {15: 0.005, 30: 0.005, 60: 0.010}
"""Numbers of pairs after which rows are judged, and the error each look may spend: 2 % in all."""

MARGIN = 0.03
"""Changes smaller than this share count as ``same``."""

_FLIPS = 4999
_POWER_Z = 1.645  # detected in 95 of 100

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """The verdict on a row and its interval.

    Args:
        verdict: ``faster``, ``slower``, ``same`` or ``ambiguous``.
        effect: relative change of the time: 0.1 is 10 % slower.
        low, high: interval of the effect; the intervals of a look hold simultaneously.
        visible: smallest change that would have been detected in 95 of 100 comparisons.
        pairs: number of pairs.
        spread: standard deviation of a pair's value, as a share.
    """

    verdict: str
    effect: float
    low: float
    high: float
    visible: float
    pairs: int
    spread: float


def hodges_lehmann(values: Sequence[float] | Values) -> float:
    """The median of the means of all pairs of values."""
    found = np.asarray(values, dtype=float)
    first, second = np.triu_indices(len(found))
    return float(np.median((found[first] + found[second]) / 2))


def judge(values: Values, *, alpha: float, margin: float = MARGIN, seed: int = 0) -> list[Judged]:
    """Judge the rows of a look.

    Args:
        values: logs of B's time over A's, ``(pairs, rows)``.
        alpha: largest probability that any unchanged row is called faster or slower.
        margin: changes smaller than this share count as ``same``.
        seed: seed of the sign flips.

    Returns:
        One result for each row, ``ambiguous`` if the row is not decided.
    """
    pairs, rows = values.shape
    if 2.0 ** (1 - pairs) > alpha:  # too few pairs for any signs to be significant
        empty = [hodges_lehmann(values[:, row]) if pairs else math.nan for row in range(rows)]
        return [
            Judged("ambiguous", math.expm1(e), -1.0, math.inf, math.inf, pairs, math.nan)
            for e in empty
        ]
    limit = _limit(values, alpha, seed)
    found = []
    for row in range(rows):
        column = values[:, row]
        error = float(column.std(ddof=1)) / math.sqrt(pairs)
        center, half = hodges_lehmann(column), limit * error
        significant = abs(float(column.mean())) > half
        effect, low, high = (math.expm1(x) for x in (center, center - half, center + half))
        inside = -margin < low and high < margin
        if inside or (significant and abs(effect) <= margin):
            verdict = "same"
        elif significant:
            verdict = "slower" if effect > 0 else "faster"
        else:
            verdict = "ambiguous"
        found.append(
            Judged(
                verdict=verdict,
                effect=effect,
                low=low,
                high=high,
                visible=math.expm1(max(half, math.log1p(margin)) + _POWER_Z * error),
                pairs=pairs,
                spread=math.expm1(float(column.std(ddof=1))),
            )
        )
    return found


def _limit(values: Values, alpha: float, seed: int) -> float:
    """The value that the table's largest absolute t exceeds by chance in a share ``alpha``."""
    pairs = len(values)
    chance = np.random.default_rng(seed)
    signs = chance.choice((-1.0, 1.0), size=(_FLIPS, pairs))
    means = signs @ values / pairs
    squares = (values**2).sum(0)  # the same for every flip
    variances = np.maximum(squares - pairs * means**2, 1e-300) / (pairs - 1)
    largest = np.abs(means / np.sqrt(variances / pairs)).max(1)
    # the table itself counts as one of the flips
    place = math.ceil((1 - alpha) * (_FLIPS + 1)) - 1
    return float(np.sort(largest)[min(place, _FLIPS - 1)])
