"""Records and asv's results as one tidy frame."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from attnbench.benchmark import frames
from attnbench.benchmark import records as store
from attnbench.benchmark.records import Record
from tests.measured_records import record


def lines_of(*ratios: float | None, **changes: Any) -> list[Record]:
    """A line for each process, whose facts are in the first."""
    return [
        record(
            process=number,
            ratio=ratio,
            time=None if ratio is None else ratio / 4,
            peak_bytes=4096 if number == 0 else None,
            baseline="scaled_dot",
            samples_s=(0.2, 0.3),
            machine={"node": "here"},
            **{"subject": "additive", **changes},
        )
        for number, ratio in enumerate(ratios)
    ]


def test_processes_together_give_medians_and_an_interval_over_processes() -> None:
    (row,) = frames.summaries(lines_of(1.9, 2.1, 2.0))
    assert row.times_s == (0.475, 0.525, 0.5)
    assert (row.time_s, row.peak_bytes, len(row.samples_s)) == (0.5, 4096, 6)
    assert row.ratios == pytest.approx((1.9, 2.1, 2.0))
    assert row.ratio == pytest.approx(2.0, rel=0.01)
    assert row.ratio_low < 1.9
    assert row.ratio_high > 2.1
    assert row.baseline == "scaled_dot"


def test_of_one_process_the_interval_is_that_over_its_blocks() -> None:
    (row,) = frames.summaries(lines_of(2.0, ratio_low=1.8, ratio_high=2.2))
    assert (row.ratio, row.ratio_low, row.ratio_high) == (2.0, 1.8, 2.2)
    (alone,) = frames.summaries(lines_of(2.0))
    assert (alone.ratio_low, alone.ratio_high) == (None, None)


def test_the_gain_of_a_kernel_is_from_the_processes_that_measured_both() -> None:
    kernel = lines_of(0.5, 0.6, 0.1, subject="additive/factorised", kind="kernel")
    scoring, fast = frames.summaries([*lines_of(1.0, 1.2), *kernel])
    assert scoring.gain is None
    assert fast.gain == pytest.approx(2.0)


def test_a_process_that_ended_otherwise_gives_the_row_its_status() -> None:
    for ratios in ((2.0, None), (None, 2.0)):
        lines = lines_of(*ratios)
        place = ratios.index(None)
        lines[place] = dataclasses.replace(lines[place], status="crashed", reason="SIGSEGV")
        (row,) = frames.summaries(lines)
        assert (row.status, row.reason, row.time_s) == ("crashed", "SIGSEGV", 0.5)
        assert (row.baseline, row.ratio, row.ratios, row.gain) == (None, None, (), None)


def test_a_later_line_of_a_process_replaces_the_earlier_one() -> None:
    (row,) = frames.summaries([*lines_of(1.0), *lines_of(3.0)])
    assert row.ratio == 3.0


def test_records_are_rows_of_a_frame_whose_columns_end_in_their_units(tmp_path: Path) -> None:
    for line in lines_of(1.9, 2.1):
        store.append(tmp_path / "r.jsonl", line)
    (row,) = frames.load(tmp_path).to_dict("records")
    assert (row["time_s"], row["machine.node"]) == (0.5, "here")
