"""Blocks of slots, ABBA or BAAB: two calls alternate, so that disturbances affect both.

A slot is some milliseconds of consecutive calls of one side. A block is four slots in one of two
orders, drawn at random. In either order, both sides are measured at the same mean point in time, so
that a linear drift within the block cancels. The value of a block is half the log of the ratio of
products; the value of a pair is the median over its blocks. This module does not import torch.
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
"""The quantile of slots used as a call's time; low, since disturbances only make slots longer."""

_FEWEST = 3


@dataclass(frozen=True)
class Slot:
    """One slot.

    Args:
        seconds: mean time of one call, in seconds.
        disturbed: whether the thread was preempted or a hypervisor stole time.
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
        """The number of disturbed slots."""
        return sum(slot.disturbed for slot in self.slots)


def run_blocks(
    a: Callable[[], Slot], b: Callable[[], Slot], count: int, chance: random.Random
) -> Iterator[Block]:
    """Take a number of blocks.

    Args:
        a, b: functions that take one slot of each side.
        count: number of blocks.
        chance: draws the order of each block.
    """
    sides = {"A": a, "B": b}
    for _ in range(count):
        order = chance.choice(ORDERS)
        yield Block(order, tuple(sides[side]() for side in order))


_Taken = TypeVar("_Taken", Block, Slot)


def clean(taken: Sequence[_Taken]) -> list[_Taken]:
    """Keep the undisturbed slots or blocks; if these are too few, the least disturbed ones.

    At least half are kept, and at least three if there are that many.
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
