"""Blocks: what they are worth, and which of them count."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from attnbench.benchmark.measuring.blocks import (
    Block,
    Slot,
    clean,
    low_quantile,
    pair_value,
    run_blocks,
)


def block(order: str, *seconds: float, disturbed: int = 0) -> Block:
    return Block(order, tuple(Slot(s, n < disturbed) for n, s in enumerate(seconds)))


@pytest.mark.parametrize("order", ["ABBA", "BAAB"])
def test_a_block_is_half_the_log_of_the_ratio_of_products(order: str) -> None:
    seconds = {"A": 2.0, "B": 3.0}
    found = block(order, *(seconds[side] for side in order))
    assert found.value == pytest.approx(math.log(1.5))


@pytest.mark.parametrize("order", ["ABBA", "BAAB"])
def test_a_drift_within_a_block_cancels(order: str) -> None:
    drift = [math.exp(0.3 * n) for n in range(4)]
    assert block(order, *drift).value == pytest.approx(0.0)
    assert block("ABAB", *drift).value != pytest.approx(0.0)


def test_both_orders_are_drawn_and_each_side_has_two_slots() -> None:
    taken: list[str] = []

    def slot(side: str) -> Slot:
        taken.append(side)
        return Slot(1.0)

    found = list(run_blocks(lambda: slot("A"), lambda: slot("B"), 40, random.Random(0)))
    assert {b.order for b in found} == {"ABBA", "BAAB"}
    assert "".join(taken) == "".join(b.order for b in found)
    assert all(len(b.side(name)) == 2 for b in found for name in "AB")


def test_disturbed_blocks_are_dropped_while_enough_remain() -> None:
    calm = [block("ABBA", 1, 1, 1, 1) for _ in range(5)]
    bad = [block("ABBA", 1, 9, 9, 1, disturbed=2) for _ in range(5)]
    assert clean([*bad, *calm]) == calm
    assert pair_value([*bad, *calm]) == 0.0


def test_with_too_few_calm_blocks_the_least_disturbed_half_stays() -> None:
    worse = [block("ABBA", 1, 2, 2, 1, disturbed=4) for _ in range(4)]
    better = [block("ABBA", 1, 1, 1, 1, disturbed=1) for _ in range(3)]
    calm = [block("BAAB", 1, 1, 1, 1)]
    kept = clean([*worse, *better, *calm])
    assert kept == [*better, *calm]
    assert clean(worse[:2]) == worse[:2]


def test_the_time_of_a_call_is_the_low_quartile_of_calm_slots() -> None:
    slots = [Slot(t) for t in (5.0, 1.0, 2.0, 3.0, 4.0)] + [Slot(0.1, disturbed=True)]
    assert low_quantile(slots) == statistics.quantiles([1, 2, 3, 4, 5], n=4, method="inclusive")[0]
    assert low_quantile([Slot(7.0)]) == 7.0


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
