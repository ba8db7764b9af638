"""Runs that are resumed: what has to be as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnbench.benchmark.records.record import BASELINES, Record
from attnbench.cli import recorded_run
from attnbench.cli.recorded_run import Place
from attnbench.errors import UsageError


def test_a_run_is_not_resumed_with_another_baseline() -> None:
    names = ("run", "created", "contract", "subject", "case", "direction", "dtype", "device")
    record = Record(**dict.fromkeys(names, "x"), status="ok", baseline="scaled_dot", ratio=1.0)
    place = Place(Path("mine.jsonl"), "mine", (record,))
    recorded_run._same_baselines(place, BASELINES)
    with pytest.raises(UsageError, match=r"began with the baseline scaled_dot(?s:.*)--baseline"):
        recorded_run._same_baselines(place, ("dot", BASELINES[1]))
