"""Covering: a few rows of levels, with every pair that may come together, and many triples.

Rows are built greedily, as in AETG (Cohen et al. 1997, IEEE Trans. Software Eng. 23). The
maintained packages for it take no seed, and do not promise to cover all pairs under constraints.
"""

from __future__ import annotations

import copy
import functools
import itertools
import operator
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

Row = dict[str, str]
"""A level for each axis, by the names of both."""
Pair = tuple[tuple[str, str], tuple[str, str]]
"""Two levels, each with its axis before it, in the order of their names."""

_ROUNDS, _TOLD = 6, 6
_STEPS = 2000
"""Most parts of rows that are tried for a pair."""
_PAIR = 16
"""How many triples a pair counts for: with more, there are fewer rows, and fewer triples in all."""


def pairs_of(row: Mapping[str, str]) -> set[Pair]:
    """The pairs of levels in a row."""
    return set(itertools.combinations(sorted(row.items()), 2))


class Together:
    """Which levels came together in a row, two and three at a time.

    Args:
        axes: levels by axis.
    """

    def __init__(self, axes: Mapping[str, Collection[str]]) -> None:
        self.levels = [(axis, level) for axis in axes for level in axes[axis]]
        self.number = {level: number for number, level in enumerate(self.levels)}
        # of each level the bits of all that came with it and another, in a block for each other
        self._came = [0] * len(self.levels)
        self._pairs = [0] * len(self.levels)

    def copy(self) -> Together:
        """What came so far."""
        found = copy.copy(self)
        found._came, found._pairs = self._came.copy(), self._pairs.copy()
        return found

    def add(self, row: Row) -> None:
        """Count a row."""
        numbers = [self.number[level] for level in row.items()]
        bits, blocks = self.bits(numbers)
        for number in numbers:
            self._came[number] |= blocks
            self._pairs[number] |= bits

    def bits(self, numbers: Iterable[int]) -> tuple[int, int]:
        """A bit for each of some levels; and those bits, in the block of each of them."""
        bits = starts = 0
        for number in numbers:
            bits |= 1 << number
            starts |= 1 << number * len(self.levels)
        return bits, bits * starts

    def came(self, pair: Pair) -> bool:
        """Whether both levels of a pair came in one row."""
        one, other = (self.number[level] for level in pair)
        return self._pairs[one] >> other & 1 != 0

    def thirds(self, one: int, other: int) -> int:
        """The bits of all that came with two levels."""
        return self._came[one] >> other * len(self.levels) & (1 << len(self.levels)) - 1

    def gain(self, number: int, bits: int, blocks: int) -> int:
        """How many triples and pairs of a level with some others, by their bits, did not come."""
        pairs = (bits & ~self._pairs[number]).bit_count()
        return _PAIR * pairs + (blocks & ~self._came[number]).bit_count()


def cover(
    axes: Mapping[str, Collection[str]],
    fits: Sequence[Callable[[Row], bool]],
    chance: random.Random,
    together: Together | None = None,
) -> Iterator[Row]:
    """Rows in which each pair of levels comes that any row may have, and many of three levels.

    Args:
        axes: levels by axis; those that leave the others the least choice come first.
        fits: whether a row, or a part of one, may be; from the strictest to the widest. A pair
            comes in a row of the first of them that allows any row with the pair.
        chance: draws the order.
        together: what came already, and need not come.
    """
    together = Together(axes) if together is None else together.copy()
    searches = [_Search(axes, allowed, together, chance) for allowed in fits]
    pairs = [
        (one, other)
        for first, second in itertools.combinations(sorted(axes), 2)
        for one in zip(itertools.repeat(first), axes[first], strict=False)
        for other in zip(itertools.repeat(second), axes[second], strict=False)
    ]
    for pair in chance.sample(pairs, len(pairs)):
        if not together.came(pair):
            rows = (search.row_with(pair) for search in searches)
            row = next((found for found in rows if found is not None), None)
            if row is not None:
                together.add(row)
                yield row


class _Search:
    """Looks for rows with what did not come yet.

    Args:
        axes, fits, chance: as of :func:`cover`, but one condition.
        together: what came.
    """

    def __init__(
        self,
        axes: Mapping[str, Collection[str]],
        fits: Callable[[Row], bool],
        together: Together,
        chance: random.Random,
    ) -> None:
        self.fits, self.together, self.chance = fits, together, chance
        self.numbers = {axis: [together.number[axis, one] for one in axes[axis]] for axis in axes}
        self.bits = {axis: sum(1 << one for one in self.numbers[axis]) for axis in axes}
        self.fitting = dict.fromkeys(itertools.chain(*self.numbers.values()), 0)
        for one, other in itertools.combinations(self.fitting, 2):
            pair = dict((together.levels[one], together.levels[other]))
            if len(pair) == 2 and fits(pair):
                self.fitting[one] |= 1 << other
                self.fitting[other] |= 1 << one

    def row_with(self, pair: Pair) -> Row | None:
        """A whole row with a pair, which has many pairs and triples that did not come."""
        numbers = [self.together.number[level] for level in pair]
        return self._completed(numbers, iter(range(_STEPS)))

    def _completed(self, numbers: list[int], steps: Iterator[int]) -> Row | None:
        row = dict(self.together.levels[number] for number in numbers)
        if next(steps, None) is None or not self.fits(row):
            return None
        fitting = functools.reduce(operator.and_, (self.fitting[number] for number in numbers))
        left = [axis for axis in self.numbers if axis not in row]
        if not left or not all(fitting & self.bits[axis] for axis in left):
            return None if left else row
        options = [number for number in self.numbers[left[0]] if fitting >> number & 1]
        bits = self.together.bits(numbers)
        for number in sorted(
            options,
            key=lambda number: (self.together.gain(number, *bits), self.chance.random()),
            reverse=True,
        ):
            found = self._completed([*numbers, number], steps)
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
        self.right = Together(axes)
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
            yield from cover(axes, fits, self.chance, self.right)
            if not self.refused:
                return
            fits = [partial(self._alone, allowed) for allowed in self.fits] + list(self.fits)

    def _alone(self, fits: Callable[[Row], bool], row: Row) -> bool:
        """Whether a row fits that has at most one pair which came, but in no right call."""
        doubted = (p for p in pairs_of(row) if p in self.wanted and not self.right.came(p))
        return fits(row) and len(list(doubted)) <= 1

    def add(self, row: Row, *, right: bool) -> None:
        """Count the pairs of a row; where it is not right, an error was raised."""
        self.wanted |= dict.fromkeys(sorted(pairs_of(row)))
        if right:
            self.right.add(row)
        self.refused |= not right

    def _lost(self) -> set[tuple[str, str]]:
        wanted = {one for pair in self.wanted for one in pair}
        return {one for one in wanted if not self.right.came((one, one))}

    def untried(self) -> list[str]:
        """The levels, the pairs of other levels, and the share of triples with no right call."""
        lost = self._lost()
        pairs = [pair for pair in self.wanted if not (self.right.came(pair) or lost & {*pair})]
        told = [f"{one[1]} with {other[1]}" for one, other in pairs]
        more = [f"{len(told) - _TOLD} more pairs"] if len(told) > _TOLD else []
        levels = [level for axis in self.axes for level in self.axes[axis] if (axis, level) in lost]
        return [*levels, *told[:_TOLD], *more, *self._triples()]

    def _triples(self) -> list[str]:
        fitting = _Search(self.axes, self.fits[-1], self.right, self.chance).fitting
        every = left = 0
        holes = []
        for one, other in itertools.combinations(fitting, 2):
            if fitting[one] >> other & 1:
                thirds = fitting[one] & fitting[other] >> other << other
                missing = thirds & ~self.right.thirds(one, other)
                every, left = every + thirds.bit_count(), left + missing.bit_count()
                holes += [(one, other, missing.bit_length() - 1)] if missing else []
        drawn = self.chance.sample(holes, len(holes))
        rows = (dict(self.right.levels[number] for number in hole) for hole in drawn)
        example = next((" with ".join(row.values()) for row in rows if self.fits[-1](row)), "")
        share = f"{100 * left / max(every, 1):.0f} % of the combinations of three levels"
        return [f"{share}, such as {example}"] if example else []
