"""The file of an unfinished run: what was taken comes back, and what cannot be written is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnbench.benchmark.measuring import unfinished_run
from attnbench.benchmark.measuring.row_measurements import RowMeasurement
from attnbench.benchmark.measuring.session import StoredMeasurement
from attnbench.errors import RecordError


def taken(subject: str) -> StoredMeasurement:
    return StoredMeasurement(
        subject=subject, case="small", number=0, measurement=RowMeasurement("ok")
    )


def test_takes_come_back_and_a_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for subject in ("dot", "additive"):
        unfinished_run.append(path, taken(subject))
    assert unfinished_run.runs(tmp_path) == [path.stem]
    with path.with_suffix(".partial").open("a") as file:
        file.write('{"subject": "cos')
    assert unfinished_run.read(path) == [taken("dot"), taken("additive")]
    unfinished_run.remove(path)
    assert not unfinished_run.exists(path)
    assert unfinished_run.read(path) == []


def test_a_take_that_cannot_be_written_is_told_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.with_suffix(".partial").mkdir()  # permissions do not stop an administrator
    with pytest.raises(RecordError, match=r"cannot write to .*run.jsonl"):
        unfinished_run.append(path, taken("dot"))
