"""Blocks: what they are worth, and which of them count."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from attnbench.benchmark.timing.blocks import (
    Block,
    Slot,
    clean,
    pair_value,
    student,
    take_blocks,
)


def block(order: str, *seconds: float, disturbed: int = 0) -> Block:
    return Block(order, tuple(Slot(s, n < disturbed) for n, s in enumerate(seconds)))


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.7062), (2, 4.30265), (7, 2.36462), (10, 2.22814), (301, 1.96788)],
)
def test_students_interval_is_that_of_its_tables(freedom: int, expected: float) -> None:
    assert student(freedom) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("order", ["ABBA", "BAAB"])
def test_a_block_is_half_the_log_of_the_ratio_of_products(order: str) -> None:
    seconds = {"A": 2.0, "B": 3.0}
    found = block(order, *(seconds[side] for side in order))
    assert found.value == pytest.approx(math.log(1.5))


class Taking:
    """A side that remembers what it was asked for, in the order in which both sides were."""

    def __init__(self, name: str, asked: list[str], seconds: float = 1e-3) -> None:
        self.name, self.asked, self.seconds = name, asked, seconds

    def slot(self) -> Slot:
        self.asked.append(self.name)
        return Slot(self.seconds)

    def shake(self, seed: int) -> None:
        self.asked.append(f"shake {self.name}")


def taken(
    count: int, *, seconds: float = 1e-3, cap_s: float = 60.0
) -> tuple[list[Block], list[str]]:
    asked: list[str] = []
    a, b = (Taking(name, asked, seconds) for name in "AB")
    blocks = take_blocks(a, b, count, random.Random(0), slot_s=4e-3, cap_s=cap_s)
    return list(blocks), asked


def test_memory_is_laid_out_anew_for_each_block_of_short_calls_and_some_of_long_ones() -> None:
    """Where tensors lie is worth 10 %, and is the same for all processes of one server."""
    for seconds, times in ((1e-3, 8), (1.0, 2)):
        _, asked = taken(8, seconds=seconds)
        assert asked.count("shake A") == asked.count("shake B") == times
    assert len(taken(8, cap_s=0.0)[0]) == 1


def test_disturbed_blocks_are_dropped_while_enough_remain() -> None:
    calm = [block("ABBA", 1, 1, 1, 1) for _ in range(5)]
    bad = [block("ABBA", 1, 9, 9, 1, disturbed=2) for _ in range(5)]
    assert clean([*bad, *calm]) == calm
    assert pair_value([*bad, *calm]) == 0.0


def test_noise_common_to_both_sides_cancels() -> None:
    """Single slots scatter by 60 %, and the value of a pair by 1 %."""
    chance = random.Random(1)

    def pair() -> float:
        blocks = []
        for _ in range(40):
            common = math.exp(chance.gauss(0, 0.6))
            order = chance.choice(("ABBA", "BAAB"))
            seconds = [
                common * (1.05 if side == "B" else 1.0) * math.exp(chance.gauss(0, 0.03))
                for side in order
            ]
            blocks.append(block(order, *seconds))
        return pair_value(blocks)

    values = [pair() for _ in range(30)]
    assert statistics.fmean(values) == pytest.approx(math.log(1.05), abs=0.005)
    assert statistics.stdev(values) < 0.01
