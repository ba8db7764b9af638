"""Covering: a few rows of levels, with every pair that may come together, and many triples.

Rows are built greedily, as in AETG (Cohen et al. 1997, IEEE Trans. Software Eng. 23). A
maintained package, covertable, takes a seed and constraints, but fills rows in the order of the
levels: of the 330 rows of a judgement it finds 54, goes on looking for the next, and counts no
triples.
"""

from __future__ import annotations

import copy
import functools
import itertools
import operator
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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
        # of two levels, a bit for each that came with both
        self._thirds: dict[tuple[int, int], int] = defaultdict(int)

    def add(self, row: Row) -> None:
        """Count a row."""
        numbers = [self.number[level] for level in row.items()]
        bits = sum(1 << number for number in numbers)
        for pair in itertools.product(numbers, numbers):
            self._thirds[pair] |= bits

    def came(self, pair: Pair) -> bool:
        """Whether both levels of a pair came in one row."""
        one, other = (self.number[level] for level in pair)
        return (one, other) in self._thirds

    def gain(self, number: int, others: Sequence[int]) -> int:
        """How many triples and pairs of a level with some others did not come."""
        bits, found = sum(1 << other for other in others), 0
        for other in others:
            thirds = self._thirds.get((number, other), 0)
            found += (bits & ~thirds).bit_count() + (0 if thirds else _PAIR)
        return found


class _Search:
    """Looks for rows with what did not come yet.

    Args:
        axes, fits, chance: as of :class:`Coverage`, but one condition.
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
        # of each level, those that may come with it
        self.fitting: dict[int, set[int]] = defaultdict(set)
        for one, other in itertools.combinations(itertools.chain(*self.numbers.values()), 2):
            pair = dict((together.levels[one], together.levels[other]))
            if len(pair) == 2 and fits(pair):
                self.fitting[one].add(other)
                self.fitting[other].add(one)

    def row_with(self, pair: Pair) -> Row | None:
        """A whole row with a pair, which has many pairs and triples that did not come."""
        numbers = [self.together.number[level] for level in pair]
        return self._completed(numbers, iter(range(_STEPS)))

    def _completed(self, numbers: list[int], steps: Iterator[int]) -> Row | None:
        row = dict(self.together.levels[number] for number in numbers)
        if next(steps, None) is None or not self.fits(row):
            return None
        fitting = functools.reduce(operator.and_, (self.fitting[number] for number in numbers))
        options = [
            fitting.intersection(self.numbers[axis]) for axis in self.numbers if axis not in row
        ]
        if not options or not all(options):
            return None if options else row
        for number in sorted(
            sorted(options[0]),
            key=lambda number: (self.together.gain(number, numbers), self.chance.random()),
            reverse=True,
        ):
            found = self._completed([*numbers, number], steps)
            if found is not None:
                return found
        return None


class Coverage:
    """Rows in which each pair of levels comes that any row may have, and many of three levels.

    It knows which pairs came in calls that were right.

    Args:
        axes: levels by axis; those that leave the others the least choice come first.
        fits: whether a row, or a part of one, may be; from the strictest to the widest. A pair
            comes in a row of the first of them that allows any row with the pair.
        chance: draws the order.
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
        for _ in range(_ROUNDS):
            lost, together = self._lost(), copy.deepcopy(self.right)
            axes = {
                axis: [level for level in levels if (axis, level) not in lost]
                for axis, levels in self.axes.items()
            }
            searches = [_Search(axes, allowed, together, self.chance) for allowed in fits]
            pairs = [
                ((first, one), (second, other))
                for first, second in itertools.combinations(sorted(axes), 2)
                for one, other in itertools.product(axes[first], axes[second])
            ]
            for pair in self.chance.sample(pairs, len(pairs)):
                found = () if together.came(pair) else (one.row_with(pair) for one in searches)
                for row in itertools.islice(filter(None, found), 1):
                    together.add(row)
                    yield row
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
        """The levels, and the pairs of other levels, with no right call."""
        lost = self._lost()
        pairs = [pair for pair in self.wanted if not (self.right.came(pair) or lost & {*pair})]
        told = [f"{one[1]} with {other[1]}" for one, other in pairs]
        more = [f"{len(told) - _TOLD} more pairs"] if len(told) > _TOLD else []
        levels = [level for axis in self.axes for level in self.axes[axis] if (axis, level) in lost]
        return [*levels, *told[:_TOLD], *more]
