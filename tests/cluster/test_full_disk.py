"""A disk that is full where the outcomes of a cluster are recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MAIN = (sys.executable, "-c", "import sys; from attnbench.cli import main; sys.exit(main())")
INVARIANTS = ("weights_sum_to_one", "masked_weights_are_zero", "single_key_gets_weight_one")
SEEDS = 8


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, of which 4 KiB are free."""
    if os.getuid() != 0:
        pytest.skip("only root may mount a file system")
    path = tmp_path / "disk"
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)]
    mounted = subprocess.run(words, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    try:
        (path / "other").write_bytes(bytes(60 * 1024))
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def check(journal: Path, address: str) -> subprocess.CompletedProcess[str]:
    named = (word for name in INVARIANTS for word in ("--invariant", name))
    words = ("check", "dot", "--seeds", str(SEEDS), "--cluster", address, "--resume")
    return subprocess.run(
        [*MAIN, *words, str(journal), *named, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_full_disk_is_one_line_and_what_was_recorded_is_gone_on_with(
    disk: Path, scheduler: Any
) -> None:
    journal = disk / "outcomes.jsonl"
    full = check(journal, scheduler.scheduler_address)
    assert full.returncode == 2, full.stderr
    line = full.stderr.splitlines()[-1]
    assert line.startswith(f"attnbench: --resume {journal}: ")
    assert "No space left on device" in line
    assert "Traceback" not in full.stderr
    _, *before, _ = journal.read_text().split("\n")  # the last is empty, or was not finished
    assert f"{len(before)} outcomes are in it" in line
    assert 0 < len(before) < SEEDS * len(INVARIANTS)
    (disk / "other").unlink()
    again = check(journal, scheduler.scheduler_address)
    assert again.returncode == 0, again.stderr
    _, *after = journal.read_text().splitlines()
    assert after[: len(before)] == before
    found = [(row["seed"], row["invariant"]) for row in map(json.loads, after)]
    assert sorted(found) == [(seed, name) for seed in range(SEEDS) for name in sorted(INVARIANTS)]
