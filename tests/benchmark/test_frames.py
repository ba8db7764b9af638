"""Records and asv's results as one tidy frame."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from attnbench.benchmark import frames
from attnbench.benchmark import records as store
from attnbench.benchmark.records import Record
from attnbench.errors import RecordError


def record(**changes: Any) -> Record:
    values: dict[str, Any] = {
        "run": "r",
        "created": "2026-01-01T00:00:00+00:00",
        "contract": "c",
        "subject": "additive",
        "case": "b2x3-L4",
        "direction": "forward",
        "dtype": "float32",
        "device": "cpu",
        "status": "ok",
        "lead": (2, 3),
        "time_s": 0.25,
        "samples_s": (0.2, 0.25, 0.3),
        "peak_bytes": 4096,
        "machine": {"node": "here"},
        "versions": {"torch": "2.13.0"},
        **changes,
    }
    return Record(**values)


BENCHMARKS = {
    "version": 2,
    "attention.additive.track_time": {"subject": "additive", "unit": "seconds"},
    "attention.additive.track_peak_bytes": {"subject": "additive", "unit": "bytes"},
    "other.TimeSomething.time_it": {"unit": "seconds"},
}

RESULT: dict[str, Any] = {
    "version": 2,
    "commit_hash": "abc",
    "date": 1767225600000,
    "env_name": "virtualenv-py3.11",
    "params": {"machine": "here"},
    "result_columns": ["result", "params", "version", "stats_q_25", "stats_q_75"],
    "results": {
        "attention.additive.track_time": [
            [0.25, float("nan"), None, float("nan")],
            [["'short'", "'long'"], ["'cpu'", "'accelerator'"]],
            "1",
            [0.2, None, None, None],
            [0.3, None, None, None],
        ],
        "attention.additive.track_peak_bytes": [
            [4096, float("nan"), 8192, float("nan")],
            [["'short'", "'long'"], ["'cpu'", "'accelerator'"]],
            "1",
        ],
        "other.TimeSomething.time_it": [[1.0], [], "x"],
    },
}


def asv_folder(folder: Path, result: str | None = None) -> Path:
    (folder / "machine").mkdir(parents=True)
    (folder / "benchmarks.json").write_text(json.dumps(BENCHMARKS))
    (folder / "machine" / "machine.json").write_text("{}")
    content = json.dumps(RESULT) if result is None else result
    (folder / "machine" / "abc-virtualenv-py3.11.json").write_text(content)
    return folder


def lines_of(*ratios: float | None, **changes: Any) -> list[Record]:
    """A line for each process, whose facts are in the first."""
    return [
        record(
            process=number,
            ratio=ratio,
            time_s=None if ratio is None else ratio / 4,
            peak_bytes=4096 if number == 0 else None,
            baseline="scaled_dot",
            samples_s=(0.2, 0.3),
            **changes,
        )
        for number, ratio in enumerate(ratios)
    ]


def test_processes_together_give_medians_and_an_interval_over_processes() -> None:
    (row,) = frames.summaries(lines_of(1.9, 2.1, 2.0))
    assert row.times_s == (0.475, 0.525, 0.5)
    assert (row.time_s, row.peak_bytes, len(row.samples_s)) == (0.5, 4096, 6)
    assert row.time_q1_s <= row.time_s <= row.time_q3_s
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


def test_a_record_is_a_row_whose_columns_end_in_their_units() -> None:
    frame = frames.records_frame([record(), record(status="failed", time_s=None, lead=())])
    assert len(frame) == 2
    row = frame.iloc[0]
    assert (row["time_s"], row["peak_bytes"], row["lead"], row["samples"]) == (0.25, 4096, "2x3", 3)
    assert (row["machine_node"], row["version_torch"]) == ("here", "2.13.0")
    assert str(frame["created"].dtype).startswith("datetime64")
    assert row["created"].year == 2026
    assert pd.isna(frame.iloc[1]["time_s"])


def test_asv_quantities_of_one_case_are_columns_of_one_row(tmp_path: Path) -> None:
    frame = frames.asv_frame(asv_folder(tmp_path))
    short = frame[frame["case"] == "short"].iloc[0]
    assert (short["subject"], short["device"], short["commit"]) == ("additive", "cpu", "abc")
    assert (short["time_s"], short["time_q1_s"], short["time_q3_s"]) == (0.25, 0.2, 0.3)
    assert short["peak_bytes"] == 4096
    assert short["created"] == pd.Timestamp("2026-01-01", tz="UTC")


def test_asv_failures_are_named_and_what_does_not_apply_is_left_out(tmp_path: Path) -> None:
    frame = frames.asv_frame(asv_folder(tmp_path))
    assert sorted(zip(frame["case"], frame["device"], frame["status"], strict=True)) == [
        ("long", "cpu", "failed"),
        ("short", "cpu", "ok"),
    ]


def test_an_asv_case_of_a_layer_says_itself_what_was_called() -> None:
    result = {"params": [["'decode, B=1 S=64'"], ["'cpu'"]], "result": [1.0], "version": "1"}
    (row,) = frames._case_rows({}, "mine", "track_time", result)
    assert (row["direction"], row["time_s"]) == ("decode", 1.0)


def test_both_sources_load_into_one_frame(tmp_path: Path) -> None:
    store.append(tmp_path / "runs" / "r.jsonl", record())
    frame = frames.load(tmp_path / "runs", asv_folder(tmp_path / "asv"))
    assert sorted(frame["source"]) == ["asv", "asv", "attnbench"]
    assert sorted(frame["time_s"].dropna()) == [0.25, 0.25]


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        ("{", "is damaged: it is not JSON"),
        ("[]", "not a JSON object"),
        (json.dumps({**RESULT, "version": 1}), "'asv update' brings older files"),
        (json.dumps({**RESULT, "version": 9}), "reads 2"),
        (json.dumps({"version": 2}), "KeyError: 'commit_hash'"),
        (json.dumps({**RESULT, "results": {"attention.additive.track_time": 3}}), "damaged"),
        (json.dumps({**RESULT, "results": {}}), "has no results of a suite"),
    ],
)
def test_results_of_asv_that_cannot_be_read_are_one_clear_error(
    tmp_path: Path, result: str, complaint: str
) -> None:
    with pytest.raises(RecordError, match=complaint):
        frames.asv_frame(asv_folder(tmp_path, result))
