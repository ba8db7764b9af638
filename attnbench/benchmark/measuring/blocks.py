"""Blocks of slots, ABBA or BAAB: two calls take turns, so that what disturbs one disturbs both.

A slot is some milliseconds of consecutive calls of one side. A block is four slots in one of two
orders, drawn at random; in either order both sides have the same mean time, so that a drift within
the block cancels. Its value is half the log of the ratio of products; the value of a pair is the
median over its blocks. Imports no torch.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

__all__ = ["ORDERS", "Block", "Slot", "clean", "low_quantile", "pair_value", "run_blocks"]

ORDERS = ("ABBA", "BAAB")
QUANTILE = 0.25
"""The quantile of slots that stands for a call's time: what disturbs a slot makes it longer."""

_FEWEST = 3


@dataclass(frozen=True)
class Slot:
    """One slot.

    Args:
        seconds: mean time of one call.
        disturbed: whether the thread was preempted, or the hypervisor took time.
    """

    seconds: float
    disturbed: bool = False


@dataclass(frozen=True)
class Block:
    """Four slots.

    Args:
        order: ``ABBA`` or ``BAAB``.
        slots: in that order.
    """

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
        """How many of its slots were disturbed."""
        return sum(slot.disturbed for slot in self.slots)


def run_blocks(
    a: Callable[[], Slot], b: Callable[[], Slot], count: int, chance: random.Random
) -> Iterator[Block]:
    """Take blocks.

    Args:
        a, b: take one slot of either side.
        count: of blocks.
        chance: draws the order of each.
    """
    sides = {"A": a, "B": b}
    for _ in range(count):
        order = chance.choice(ORDERS)
        yield Block(order, tuple(sides[side]() for side in order))


_Taken = TypeVar("_Taken", Block, Slot)


def clean(taken: Sequence[_Taken]) -> list[_Taken]:
    """Those that were not disturbed; with too few of them, the least disturbed half.

    At least half of all are kept, and at least three where there are as many.
    """
    fewest = max(math.ceil(len(taken) / 2), min(_FEWEST, len(taken)))
    ordered = sorted(range(len(taken)), key=lambda n: int(taken[n].disturbed))
    calm = sum(not item.disturbed for item in taken)
    return [taken[n] for n in sorted(ordered[: max(calm, fewest)])]


def pair_value(blocks: Sequence[Block]) -> float:
    """The log of B's time over A's: the median of the values of the clean blocks."""
    return statistics.median(block.value for block in clean(blocks))


def low_quantile(slots: Sequence[Slot]) -> float:
    """The time of a call: a low quantile of the clean slots."""
    times = sorted(slot.seconds for slot in clean(slots))
    if len(times) == 1:
        return times[0]
    place = QUANTILE * (len(times) - 1)
    below = math.floor(place)
    return times[below] + (place - below) * (times[min(below + 1, len(times) - 1)] - times[below])
