"""Pairwise covering: a few rows of levels, in which every possible pair of levels comes together.

Rows are built greedily, as in AETG (Cohen et al. 1997, IEEE Trans. Software Eng. 23). The
maintained packages for it take no seed, and do not promise to cover all pairs under constraints.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

Row = dict[str, str]
"""A level for each axis, by the names of both."""
Pair = tuple[tuple[str, str], tuple[str, str]]
"""Two levels, each with its axis before it, in the order of their names."""

_ROUNDS, _TOLD = 6, 6
_STEPS = 2000
"""Most parts of rows that are tried for a pair."""


def pairs_of(row: Mapping[str, str]) -> set[Pair]:
    """The pairs of levels in a row."""
    return set(itertools.combinations(sorted(row.items()), 2))


def cover(
    axes: Mapping[str, Collection[str]],
    fits: Sequence[Callable[[Row], bool]],
    chance: random.Random,
    covered: Collection[Pair] = (),
) -> Iterator[Row]:
    """Rows in which each pair of levels comes that any row may have.

    Args:
        axes: levels by axis; those that leave the others the least choice come first.
        fits: whether a row, or a part of one, may be; from the strictest to the widest. A pair
            comes in a row of the first of them that allows any row with the pair.
        chance: draws the order.
        covered: pairs that need not come.
    """
    left = {
        (one, other)
        for first, second in itertools.combinations(sorted(axes), 2)
        for one in zip(itertools.repeat(first), axes[first], strict=False)
        for other in zip(itertools.repeat(second), axes[second], strict=False)
    } - set(covered)
    for pair in chance.sample(sorted(left), len(left)):
        if pair not in left:
            continue
        tries = (
            _completed(dict(pair), axes, allowed, left, chance, iter(range(_STEPS)))
            for allowed in fits
        )
        row = next((found for found in tries if found is not None), None)
        left -= {pair} if row is None else pairs_of(row)
        if row is not None:
            yield row


def _completed(
    row: Row,
    axes: Mapping[str, Collection[str]],
    fits: Callable[[Row], bool],
    left: set[Pair],
    chance: random.Random,
    steps: Iterator[int],
) -> Row | None:
    """A whole row with the levels of a part of one, which has many pairs that are left."""
    axis = next((axis for axis in axes if axis not in row), None)
    if next(steps, None) is None or not fits(row):
        return None
    if axis is None:
        return row

    def gain(level: str) -> int:
        own = (axis, level)
        return sum(((own, one) if own < one else (one, own)) in left for one in row.items())

    levels = chance.sample(list(axes[axis]), len(axes[axis]))
    for level in sorted(levels, key=gain, reverse=True):
        found = _completed({**row, axis: level}, axes, fits, left, chance, steps)
        if found is not None:
            return found
    return None


class Coverage:
    """Which pairs of levels came in calls that were right.

    Args:
        axes, fits, chance: as of :func:`cover`.
    """

    def __init__(
        self,
        axes: Mapping[str, Collection[str]],
        fits: Sequence[Callable[[Row], bool]],
        chance: random.Random,
    ) -> None:
        self.axes, self.fits, self.chance = axes, fits, chance
        self.wanted: dict[Pair, None] = {}
        self.right: set[Pair] = set()
        self.refused = False

    def rows(self) -> Iterator[Row]:
        """Rows to be called; the next is drawn after :meth:`add` was told of the one before.

        What came only in calls that were refused comes again, without the levels at which nothing
        was right and with one such pair a row, so that no refusal hides another pair.
        """
        fits = list(self.fits)
        for number in range(_ROUNDS):
            lost = self._lost() if number else set()
            axes = {
                axis: [level for level in levels if (axis, level) not in lost]
                for axis, levels in self.axes.items()
            }
            yield from list(cover(axes, fits, self.chance, self.right))
            if not self.refused:
                return
            fits = [partial(self._alone, allowed) for allowed in self.fits] + list(self.fits)

    def _alone(self, fits: Callable[[Row], bool], row: Row) -> bool:
        """Whether a row fits that has at most one pair which came, but in no right call."""
        doubted = (pair for pair in pairs_of(row) if pair in self.wanted and pair not in self.right)
        return fits(row) and len(list(doubted)) <= 1

    def add(self, row: Row, *, right: bool) -> None:
        """Count the pairs of a row; where it is not right, an error was raised."""
        pairs = pairs_of(row)
        self.wanted |= dict.fromkeys(sorted(pairs))
        self.right |= pairs if right else set()
        self.refused |= not right

    def _lost(self) -> set[tuple[str, str]]:
        return {one for pair in self.wanted for one in pair} - {
            one for pair in self.right for one in pair
        }

    def untried(self) -> list[str]:
        """The levels, and the pairs of other levels, of which no call was right."""
        lost = self._lost()
        pairs = [pair for pair in self.wanted if pair not in self.right and not lost & {*pair}]
        told = [f"{one[1]} with {other[1]}" for one, other in pairs]
        more = [f"{len(told) - _TOLD} more pairs"] if len(told) > _TOLD else []
        levels = [level for axis in self.axes for level in self.axes[axis] if (axis, level) in lost]
        return [*levels, *told[:_TOLD], *more]
