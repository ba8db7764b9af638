"""Runs that are resumed: what has to be as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attnbench.benchmark.records import BASELINES, Record
from attnbench.cli import recorded_run
from attnbench.cli.recorded_run import RunPlace
from attnbench.errors import PluginError, UsageError
from attnbench.registry.address import parse_address


def test_a_run_is_not_resumed_with_another_baseline() -> None:
    names = ("run", "created", "contract", "subject", "case", "direction", "dtype", "device")
    record = Record(**dict.fromkeys(names, "x"), status="ok", baseline="scaled_dot", ratio=1.0)
    place = RunPlace(Path("mine.jsonl"), "mine", (record,))
    recorded_run._same_baselines(place, BASELINES)
    with pytest.raises(UsageError, match=r"began with the baseline scaled_dot(?s:.*)--baseline"):
        recorded_run._same_baselines(place, ("dot", BASELINES[1]))


def test_subjects_that_disturb_each_other_are_looked_up_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def ask(function: str, *, targets: Any, size: int) -> list[dict[str, Any]]:
        assert function == "subject_rows"
        if len(targets) > 1 or "hangs" in str(targets[0]):
            raise PluginError("subject_rows: no answer within 120 s")
        return [{"subject": str(targets[0])}]

    monkeypatch.setattr(recorded_run, "ask", ask)
    one, other, wrong = map(parse_address, ("one.py:f", "other.py:f", "hangs.py:f"))
    assert [row["subject"] for row in recorded_run._rows([one, other])] == [
        "one.py:f",
        "other.py:f",
    ]
    with pytest.raises(PluginError, match=r"hangs\.py:f cannot be looked up: .*no answer"):
        recorded_run._rows([one, wrong])
