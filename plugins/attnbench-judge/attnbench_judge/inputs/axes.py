"""What the judge's own calls are drawn from: axes, and the levels of each, in ``axes.toml``.

A judgement has a call of every pair of levels that may come together, so that what a kernel does
wrong at one level, or at two together, never depends on chance. Numbers within a level, values and
the order are drawn.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import random
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench_judge.inputs.covering import Row

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
AXES: Mapping[str, Mapping[str, Any]] = _TABLE["levels"]
"""The levels of each axis, by name, and what each stands for, as the table says."""

_ALLOWED: dict[str, list[tuple[str, set[str]]]] = {}
"""For each level, the axes of which it allows some levels only."""
for _table, _kept in (("needs", True), ("excludes", False)):
    for _level, _others in _TABLE[_table].items():
        for _axis, _names in _others.items():
            _left = {name for name in AXES[_axis] if (name in _names) == _kept}
            _ALLOWED.setdefault(_level, []).append((_axis, _left))
_SIZES = ("B", "H", "heads of keys", "L", "S", "lengths", "mask", "E", "Ev")
_FIRST = operator.itemgetter(0)  # the least of numbers in order


def _beside(row: Row) -> dict[str, frozenset[str]]:
    """The levels of each axis that may come with those of a row, or of a part of one."""
    left = {axis: frozenset([row[axis]] if axis in row else AXES[axis]) for axis in AXES}
    for level in row.values():
        for axis, names in _ALLOWED.get(level, ()):
            left[axis] &= names
    return left


@dataclass(frozen=True)
class CallSizes:
    """The sizes of a call: B, H, heads of keys and values, L, S, E and Ev."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    size: int
    value_size: int

    @property
    def pairs(self) -> int:
        """Pairs of a query and a key."""
        return self.batch * self.heads * self.q_len * self.kv_len

    @property
    def elements(self) -> int:
        """Elements of query, key, value and output, with a head of keys for each of the query."""
        lengths = self.q_len + self.kv_len
        return self.batch * self.heads * lengths * (self.size + self.value_size)


@dataclass(frozen=True)
class Most:
    """The most pairs and elements of a call."""

    pairs: int
    elements: int

    def allow(self, sizes: CallSizes) -> bool:
        """Whether a call is no larger."""
        return sizes.pairs <= self.pairs and sizes.elements <= self.elements

    def fits(self, row: Row) -> bool:
        """Whether calls of a row, or of a part of one, may be made and are small enough."""
        left = _beside(row)
        if not all(left.values()):
            return False
        sizes = _least(tuple(left[axis] for axis in _SIZES), {"L", "S"} <= row.keys())
        return sizes is not None and self.allow(sizes)


NEVER_TRIED: tuple[str, ...] = tuple(_TABLE["never_tried"])
"""What no judgement tries."""

_AT_BORDERS, _TILES = 1 / 3, (16, 32, 64, 128, 256)
"""How often a length lies at the border of tiles, and their sizes."""
_FULL = 8
"""Another number is drawn from all of its range, from the multiples of this, or from the ends."""

_EVERY = ("dtype", "heads of keys", "E")
"""Axes of which every combination comes in calls of what models run."""
_TRIES = 200
"""Most rows that are drawn to find such a call."""

FEW, MANY = Most(2**16, 2**17), Most(9 * 2**18, 2**21)
"""Sizes of most calls, and of those whose two levels need more."""


def axes_for(
    names: Collection[str],
    *,
    grouped: bool,
    style: str,
    masks: Sequence[str] = ("boolean", "floating"),
    causal: str = "bottom_right",
    empty_rows: str = "zeros",
) -> Mapping[str, list[str]]:
    """The levels that a callee takes.

    Args:
        names: of the keywords that it takes, by meaning.
        grouped: whether it takes grouped heads.
        style: style of call; in ``flash``, Ev is E.
        masks, causal, empty_rows: the conventions that it follows.
    """
    masks = masks if "attn_mask" in names else ()
    ends = {"top_left": {"L < S", "L > S"}, "bottom_right": {"L < S"}}
    aligned = ends.get(causal, set()) | {"L = S"}
    if empty_rows == "zeros" and causal == "bottom_right":
        aligned |= {"L > S"}
    kept = {axis: list(levels) for axis, levels in AXES.items()}
    kept["mask"] = [
        name
        for name, level in AXES["mask"].items()
        if level.get("form") in (None, *masks) and level.get("order") in (None, *aligned)
        if level.get("keyword") in (None, *names)
    ]
    lacks = {
        "shape of mask": not any("form" in AXES["mask"][name] for name in kept["mask"]),
        "heads of keys": not grouped,
        "scale": "scale" not in names,
        "Ev": style == "flash",
    }
    kept = {axis: kept[axis][:1] if lacks.get(axis) else kept[axis] for axis in kept}

    def may_be(level: str) -> bool:
        return all({*kept[axis]} & {*names} for axis, names in _ALLOWED.get(level, ()))

    return {axis: list(filter(may_be, levels)) for axis, levels in kept.items()}


def typical_rows(axes: Mapping[str, list[str]], chance: random.Random) -> Iterator[Row]:
    """Rows of what models run, as far as a callee takes it.

    Args:
        axes: the levels that it takes, of :func:`axes_for`.
        chance: draws the levels.
    """
    for table in _TABLE["typical"]:
        lists = {
            axis: [level for level in table.get(axis, ()) if level in levels] or levels[:1]
            for axis, levels in axes.items()
        }
        for chosen in itertools.product(*(lists[axis] for axis in _EVERY)):
            every = dict(zip(_EVERY, chosen, strict=True))
            rows = ({a: chance.choice(lists[a]) for a in axes} | every for _ in range(_TRIES))
            yield from itertools.islice(filter(MANY.fits, rows), 1)


def drawn_sizes(row: Row, chance: random.Random) -> CallSizes:
    """Sizes of a whole row that nobody could know; small ones where the row allows them."""
    apart = "L = S" not in _beside({axis: row[axis] for axis in row if axis != "L"})["L"]
    for most, share in ((FEW, 1.0), (FEW, 0.5), (FEW, 0.2), (FEW, 0.0), (MANY, 0.15), (MANY, 0.05)):

        def choose(options: Sequence[int], share: float = share) -> int:
            some = options[: max(1, math.ceil(len(options) * share))]
            full = [number for number in some if number % _FULL == 0]
            return chance.choice(chance.choice((some, full or some, (some[0], some[-1]))))

        def between(options: Sequence[int], share: float = share) -> int:
            least, last = options[0], options[-1]
            if len(options) <= last - least:
                return chance.choice(options)
            power: float = (last / least) ** (share * chance.random())
            number = round(least * power)
            if chance.random() < _AT_BORDERS:
                tile = chance.choice(_TILES)
                number = round(number / tile) * tile + chance.choice((-1, 0, 1))
            return min(max(number, least), last)

        sizes = _sizes(row, choose, between)
        if sizes is None or (apart and sizes.q_len == sizes.kv_len):
            continue
        if most.allow(sizes):
            return sizes
    sizes = _sizes(row, _FIRST, _FIRST)
    assert sizes is not None, row
    return sizes


@functools.cache
def _least(left: tuple[frozenset[str], ...], lengths: bool) -> CallSizes | None:
    """The least sizes, where these levels are left; a mask counts only where L and S are known."""
    row = {
        axis: next(name for name in AXES[axis] if name in names)
        for axis, names in zip(_SIZES, left, strict=True)
        if len(names) < len(AXES[axis]) and (lengths or axis != "mask")
    }
    return _sizes(row, _FIRST, _FIRST)


def _sizes(
    row: Row, choose: Callable[[Sequence[int]], int], between: Callable[[Sequence[int]], int]
) -> CallSizes | None:
    """Sizes of a row; ``None`` if there are none. What a part of a row leaves open is least."""
    level = {axis: AXES[axis][row.get(axis, next(iter(AXES[axis])))] for axis in _SIZES}
    order = level["mask"].get("order") if {"L", "S"} <= set(row) else None
    lengths = _lengths(level["L"], level["S"], level["lengths"], order, between)
    if lengths is None:
        return None
    numbers = {
        axis: range(*(low, high + 1, step)) for axis in "HEB" for low, high, step in [level[axis]]
    }
    groups, options = level["heads of keys"], list(numbers["H"])
    if groups == 2:
        options = [count for count in options if _divisors(count)] or [4]
    heads = choose(options)
    kv_heads = choose(((heads,), (1,), _divisors(heads))[groups])
    size = choose(numbers["E"])
    others = {0: (size,), -1: range(1, size), 1: range(size + 1, 2 * size + 1), 2: (1,)}
    value_size = choose(others[level["Ev"]]) if "Ev" in row else 1
    return CallSizes(choose(numbers["B"]), heads, kv_heads, *lengths, size, value_size)


def _divisors(count: int) -> list[int]:
    return [part for part in range(2, count) if count % part == 0]


def _lengths(
    queries: Sequence[int],
    keys: Sequence[int],
    beside: Sequence[int],
    order: str | None,
    between: Callable[[Sequence[int]], int],
) -> tuple[int, int] | None:
    """L and S, in the order that causality needs; there are as many as keys without a range.

    Both lie ``beside`` a power of two by one of these numbers, if there are any.
    """

    def drawn(least: int, last: int) -> int:
        every = range(least, last + 1)
        near = (2**power + step for power in range(14) for step in beside)
        options = sorted({*filter(every.__contains__, near)}) if beside else every
        return between(options) if options else 0

    (kv_least, kv_most) = keys
    q_least, q_most = queries or keys
    if order == "L < S":
        kv_least = max(kv_least, q_least + 1)
    if order == "L > S":
        kv_most = min(kv_most, q_most - 1)
    kv_len = drawn(kv_least, kv_most)
    if order == "L < S":
        q_most = min(q_most, kv_len - 1)
    if order == "L > S":
        q_least = max(q_least, kv_len + 1)
    q_len = drawn(q_least, q_most) if queries else kv_len
    return (q_len, kv_len) if q_len and kv_len else None
