"""The script that counts false alarms, on simulated processes instead of measured ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from attnbench.benchmark.comparing.calibration import FOLDER
from attnbench.benchmark.records import store
from attnbench.benchmark.records.record import Record
from benchmarks import false_alarms

measured_attnbench = false_alarms.attnbench


class Machine:
    """Stands in for ``attnbench bench`` and ``calibrate``; everything else is done as it is."""

    def __init__(self, noise: float) -> None:
        self.generator, self.noise, self.taken = np.random.default_rng(0), noise, 0

    def __call__(self, *arguments: str) -> str:
        """What a command prints."""
        command, subject, *_ = arguments
        if command not in ("bench", "calibrate"):
            return measured_attnbench(*arguments)
        folder = Path(arguments[arguments.index("--results") + 1])
        if command == "bench":
            self.measure(folder, arguments[arguments.index("--run") + 1], subject, 1)
        else:
            for run in range(int(arguments[arguments.index("--runs") + 1])):
                self.measure(folder / FOLDER, f"calibration-{run}", subject, 3)
        return ""

    def measure(self, folder: Path, run: str, subject: str, processes: int) -> None:
        """Records of one case of 2 ms and one of 0.2 ms."""
        for process in range(processes):
            self.taken += 1
            minute, second = divmod(self.taken, 60)
            for time_s, case in ((2e-3, "long"), (2e-4, "short")):
                record = Record(
                    run=run,
                    process=process,
                    created=f"2026-01-01T00:{minute:02}:{second:02}+00:00",
                    contract="forward, v2",
                    subject=subject,
                    case=case,
                    workload=case,
                    direction="forward",
                    dtype="float32",
                    device="cpu",
                    status="ok",
                    time_s=time_s * float(np.exp(self.generator.normal(0, self.noise))),
                    machine={"node": "here"},
                    versions={},
                )
                store.append(store.run_path(folder, run), record)


def told(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    noise: float,
    swaps: int = 0,
) -> list[str]:
    """The lines after the last of two pairs."""
    monkeypatch.setattr(false_alarms, "attnbench", Machine(noise))
    false_alarms.main(2, 8, swaps, ["dot"])
    lines = capsys.readouterr().out.splitlines()
    return lines[lines.index("after 2 pairs of 8 processes a side") + 1 :]


def test_on_a_quiet_machine_every_slowdown_is_promised_and_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(monkeypatch, capsys, 0.005) == [
        "  unchanged, called: 0 of 4, that is 0.0% to 52.7%",
        "  10 % slower, at least 1 ms, promised, called: 2 of 2, that is 22.4% to 100.0%",
        "  10 % slower, below 1 ms, promised, called: 2 of 2, that is 22.4% to 100.0%",
        "  slower by what it said it would see, at least 1 ms, called: 2 of 2, that is 22.4% to "
        "100.0%",
        "  slower by what it said it would see, below 1 ms, called: 2 of 2, that is 22.4% to "
        "100.0%",
    ]


def test_on_a_busy_machine_nothing_is_promised(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(monkeypatch, capsys, 0.3)
    assert all("not promised" in line for line in lines[1:3])
    assert all("what it said it would see" in line for line in lines[3:])
    assert lines[1].startswith("  10 % slower, at least 1 ms, not promised, called: ")


def test_swapped_sides_are_counted_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(monkeypatch, capsys, 0.005, swaps=4)
    assert [line.partition(", that")[0] for line in lines] == [
        "  unchanged, called: 0 of 20",
        "  10 % slower, at least 1 ms, promised, called: 10 of 10",
        "  10 % slower, below 1 ms, promised, called: 10 of 10",
        "  slower by what it said it would see, at least 1 ms, called: 10 of 10",
        "  slower by what it said it would see, below 1 ms, called: 10 of 10",
    ]


def test_on_a_busy_machine_what_is_said_to_be_seen_is_called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = told(monkeypatch, capsys, 0.3, swaps=100)
    for line in lines[-2:]:
        count, _, rest = line.partition("called: ")[2].partition(" of ")
        assert int(rest.split(",")[0]) == 202, line
        assert int(count) >= 0.95 * 202, line


def test_runs_in_turn_are_swapped_and_none_is_lost(tmp_path: Path) -> None:
    sides = tmp_path / "a", tmp_path / "b"
    for side in sides:
        side.mkdir()
        for process in range(12):
            (side / f"{side.name}-{process}.jsonl").touch()
    a, b = (
        {path.stem for path in copy.iterdir()} for copy in false_alarms.swapped(sides, number=0)
    )
    assert a not in ({f"{side}-{n}" for n in range(12)} for side in "ab")
    assert all(len({f"a-{n}", f"b-{n}"} & side) == 1 for n in range(12) for side in (a, b))
    assert len(a | b) == 24


def test_a_share_has_bounds_that_hold_in_95_of_100() -> None:
    assert false_alarms.called(Counter(same=168), "faster", "slower") == (
        "0 of 168, that is 0.0% to 1.8%"
    )
    assert false_alarms.called(Counter(slower=99, ambiguous=1), "slower") == (
        "99 of 100, that is 95.3% to 99.9%"
    )
    assert false_alarms.called(Counter(), "slower") == "none"
