"""Blocks of slots, ABBA or BAAB: two sides alternate, so that disturbances affect both.

A slot is some milliseconds of consecutive calls of one side. A block is four slots in one of two
orders, drawn at random. In either order, both sides are measured at the same mean point in time, so
that a linear drift within the block cancels. The value of a block is half the log of the ratio of
products; the value of a pair is the median over its blocks. This module does not import torch.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

ORDERS = ("ABBA", "BAAB")
QUANTILE = 0.25
"""The quantile of slots used as a call's time; low, since disturbances only make slots longer."""

MOST_LOG = math.log(1000)
"""An interval whose half is wider than this, on the log scale, is not known."""

_MIN_ITEMS = 3
_BATCHES = 4
"""Batches into which the blocks of a single process are merged, since neighbours are alike."""
_STUDENT = (12.7062, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216)
"""The tables of Student's t, 95 % of both sides, for 1 to 9 degrees of freedom."""
_LONG_SHAKE = 4
"""Blocks between changes of the memory layout, for calls that are longer than a slot."""


@dataclass(frozen=True)
class Slot:
    """One slot.

    Args:
        seconds: mean time of one call, in seconds.
        disturbed: whether the thread was preempted.
    """

    seconds: float
    disturbed: bool = False


@dataclass(frozen=True)
class Block:
    """Four slots."""

    order: str
    slots: tuple[Slot, ...]

    def side(self, name: str) -> list[Slot]:
        """The slots of side ``A`` or ``B``."""
        return [slot for side, slot in zip(self.order, self.slots, strict=True) if side == name]

    @property
    def value(self) -> float:
        """Half the log of the ratio of products: the log of B's time over A's."""
        a, b = (math.fsum(math.log(s.seconds) for s in self.side(name)) for name in "AB")
        return (b - a) / 2

    @property
    def disturbed(self) -> int:
        """The number of disturbed slots."""
        return sum(slot.disturbed for slot in self.slots)


class Side(Protocol):
    """A timer that takes slots, in this process or another."""

    @property
    def seconds(self) -> float:
        """Seconds of a call."""

    def slot(self) -> Slot:
        """Take one slot."""

    def shake(self, seed: int) -> None:
        """Move the tensors that the call reads and writes to other places, and call it once."""


def take_blocks(
    a: Side, b: Side, count: int, chance: random.Random, *, slot_s: float, cap_s: float
) -> Iterator[Block]:
    """Take blocks, with a new memory layout for each (or for a few, of long calls).

    Args:
        a, b: the two sides.
        count: number of blocks.
        chance: draws orders and memory layouts.
        slot_s: duration of a slot, in seconds.
        cap_s: seconds after which no further block begins; one is always taken.
    """
    sides = {"A": a, "B": b}
    deadline = time.perf_counter() + cap_s
    interval = 1 if max(a.seconds, b.seconds) < slot_s else _LONG_SHAKE
    for number in range(count):
        if number and time.perf_counter() > deadline:
            break
        if number % interval == 0:
            for side in chance.sample((a, b), 2):  # the one called last starts with warm caches
                side.shake(chance.getrandbits(32))
        order = chance.choice(ORDERS)
        yield Block(order, tuple(sides[name].slot() for name in order))


_Item = TypeVar("_Item", Block, Slot)


def clean(items: Sequence[_Item]) -> list[_Item]:
    """Keep the undisturbed slots or blocks; if these are too few, the least disturbed ones.

    At least half are kept, and at least three if there are that many.
    """
    minimum = max(math.ceil(len(items) / 2), min(_MIN_ITEMS, len(items)))
    order = sorted(range(len(items)), key=lambda n: int(items[n].disturbed))
    count = sum(not item.disturbed for item in items)
    return [items[n] for n in sorted(order[: max(count, minimum)])]


def pair_value(blocks: Sequence[Block]) -> float:
    """The log of B's time over A's: the median of the values of the clean blocks."""
    return statistics.median(block.value for block in clean(blocks))


def low_quantile(slots: Sequence[Slot]) -> float:
    """The time of a call: a low quantile of the clean slots."""
    times = [slot.seconds for slot in clean(slots)]
    if len(times) == 1:
        return times[0]
    return statistics.quantiles(times, n=round(1 / QUANTILE), method="inclusive")[0]


def student(freedom: int) -> float:
    """How many deviations from the mean hold 95 % of Student's t with these degrees of freedom.

    Of many, the first terms of its expansion (Abramowitz and Stegun 1964, 26.7.5) are enough: no
    library is installed and imported for it.
    """
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = 1.959964
    once, twice = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + once / freedom + twice / freedom**2


def interval(logs: Sequence[float]) -> tuple[float, float | None, float | None]:
    """The mean of logs of ratios and its 95 % interval by Student's t, as ratios.

    The interval is ``None`` if it is not known.
    """
    center = statistics.fmean(logs)
    if len(logs) > 1:
        deviation = statistics.stdev(logs) / math.sqrt(len(logs))
        margin = student(len(logs) - 1) * deviation
        if margin <= MOST_LOG:
            return math.exp(center), math.exp(center - margin), math.exp(center + margin)
    return math.exp(center), None, None


def blocks_interval(blocks: Sequence[Block]) -> tuple[float, float | None, float | None]:
    """The ratio of a single process; its interval excludes the variation between processes."""
    values = [block.value for block in blocks]
    size = max(1, len(values) // _BATCHES)
    batches = [statistics.median(values[n : n + size]) for n in range(0, len(values), size)]
    _, low, high = interval(batches)
    center = math.exp(pair_value(blocks))
    return center, low and min(low, center), high and max(high, center)
