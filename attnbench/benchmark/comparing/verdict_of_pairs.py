"""The test of a comparison in pairs: signs flipped over the whole table, at a few looks.

Under no change the sign of a pair's value is chance, and all rows of a pair share it. So the
largest absolute t over the table is compared with those of the same table after the signs of whole
pairs were flipped at random: what rows have in common is in both, and the error is the table's.

The error is shared out among the looks. A row that is decided at one goes on no further.

========== ====================================================================================
same       the interval lies within the margin, or a significant effect does
faster     a significant effect below it
slower     a significant effect above it
ambiguous  not decided at the last look
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
"""Pairs at which is looked, and the share of the error that each look may spend: 2 % in all."""

MARGIN = 0.03
"""A change smaller than this share is called same."""

_FLIPS = 4999
_POWER_Z = 1.645  # seen in 95 of 100

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Judged:
    """What is to be said of a row.

    Args:
        verdict: ``faster``, ``slower``, ``same`` or ``ambiguous``.
        effect: change of the time as a share: 0.1 is 10 % slower.
        low, high: its interval; those of the rows of a look hold all at once.
        visible: the smallest change that would have been called in 95 of 100.
        pairs: how many there were.
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
        alpha: most chance that any unchanged row is called.
        margin: changes smaller than this share are the same.
        seed: of the flips.

    Returns:
        One for each row; ``ambiguous`` where it is not decided.
    """
    pairs, rows = values.shape
    if 2.0 ** (1 - pairs) > alpha:  # so few pairs that chance alone gives any of their signs
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
    """The largest absolute t over the table that chance exceeds in a share ``alpha`` of tables."""
    pairs = len(values)
    chance = np.random.default_rng(seed)
    signs = chance.choice((-1.0, 1.0), size=(_FLIPS, pairs))
    means = signs @ values / pairs
    squares = (values**2).sum(0)  # flips leave them alone
    variances = np.maximum(squares - pairs * means**2, 1e-300) / (pairs - 1)
    largest = np.abs(means / np.sqrt(variances / pairs)).max(1)
    # the table itself is one of the flips
    place = math.ceil((1 - alpha) * (_FLIPS + 1)) - 1
    return float(np.sort(largest)[min(place, _FLIPS - 1)])
