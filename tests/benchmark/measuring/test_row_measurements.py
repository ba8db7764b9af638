"""Takes: what several processes say together."""

from __future__ import annotations

import math
import random

import pytest

from attnbench.benchmark.grid import half_width
from attnbench.benchmark.measuring.row_measurements import (
    RowMeasurement,
    gain_of,
    interval,
    ratio_of,
    summary_fields,
)
from attnbench.benchmark.timing.blocks import Block, Slot


def measured(
    ratio: float, *, blocks: int = 4, seconds: float = 1.0, **more: object
) -> RowMeasurement:
    a, b = Slot(seconds), Slot(seconds * ratio)
    made = tuple(Block("ABBA", (a, b, b, a)) for _ in range(blocks))
    slots = tuple(slot for one in made for slot in one.side("B"))
    return RowMeasurement("ok", blocks=made, slots=slots, **more)


def test_the_interval_holds_the_truth_in_95_of_100() -> None:
    chance = random.Random(0)
    held = 0
    for _ in range(1000):
        found = interval([math.log(2) + chance.gauss(0, 0.1) for _ in range(4)])
        held += found.low <= 2 <= found.high
    assert 930 <= held <= 970


def test_an_interval_over_processes_is_not_one_over_their_blocks() -> None:
    """Each process is off by something of its own, which its blocks do not show."""
    found = ratio_of([measured(1.9), measured(2.1), measured(2.0)])
    assert found is not None
    assert found.ratio == pytest.approx(2.0, rel=0.01)
    assert found.low < 1.9
    assert found.high > 2.1


def test_of_one_process_the_interval_is_over_its_blocks() -> None:
    blocks = []
    for n in range(8):
        a, b = Slot(1.0), Slot(2.0 + 0.1 * n)
        blocks.append(Block("ABBA", (a, b, b, a)))
    found = ratio_of([RowMeasurement("ok", blocks=tuple(blocks))])
    assert found is not None
    assert 1.8 < found.low < found.ratio < found.high < 3.0


def test_of_one_block_no_interval_is_told() -> None:
    record = summary_fields([measured(2.0, blocks=1)])
    assert record["ratio"] == pytest.approx(2.0)
    assert "ratio_low" not in record


def test_the_gain_of_a_kernel_is_from_the_ratios_of_both() -> None:
    kernel = [measured(0.5), measured(0.6), measured(0.55)]
    scoring = [measured(1.0), measured(1.2), measured(1.1)]
    found = gain_of(kernel, scoring)
    assert found is not None
    assert found.ratio == pytest.approx(2.0)
    assert half_width(found.low, found.high) < 1e-6  # what is common to both in a process cancels


def test_times_are_medians_over_processes_and_all_are_kept() -> None:
    record = summary_fields([measured(2.0, seconds=s) for s in (1.0, 3.0, 2.0)])
    assert record["times_s"] == (2.0, 6.0, 4.0)
    assert record["time_s"] == 4.0
    assert record["time_q1_s"] <= record["time_s"] <= record["time_q3_s"]
    assert record["ratios"] == pytest.approx((2.0, 2.0, 2.0))


def test_a_process_that_ended_otherwise_gives_the_row_its_status() -> None:
    ended = RowMeasurement("crashed", "its process was ended by SIGSEGV")
    for measurements in ([measured(2.0), ended], [ended, measured(2.0)]):
        record = summary_fields(measurements)
        assert (record["status"], record["reason"]) == (ended.status, ended.reason)
        assert "ratio" not in record
