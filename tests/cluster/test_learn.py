"""The experiment `attnbench learn` on a Dask cluster of this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli_runs import python

SMALL = ("--task", "content", "--size", "4", "--seeds", "2", "--steps", "12")


def runs(path: Path, *arguments: str) -> list[dict[str, Any]]:
    """The runs that are recorded in a file, without their times, sorted."""
    words = ("learn", "dot", "average", *SMALL, "--output", path, *arguments)
    done = python("-m", "attnbench", *words)
    assert done.returncode == 0, done.stderr
    found = [{**json.loads(line), "step_s": 0} for line in path.read_text().splitlines()]
    return sorted(found, key=json.dumps)


def test_a_cluster_trains_the_same_runs_and_does_not_repeat_those_that_are_there(
    tmp_path: Path, scheduler: Any
) -> None:
    cluster = ("--cluster", scheduler.scheduler_address)
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    expected = runs(here)
    assert len(expected) == 4
    assert runs(there, *cluster) == expected
    written = there.read_text()
    assert runs(there, *cluster) == expected
    assert there.read_text() == written
