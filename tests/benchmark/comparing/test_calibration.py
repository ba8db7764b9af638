"""attnbench calibrate: runs of their own, kept apart, and used by compare; nothing is timed."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnbench import cli
from attnbench.benchmark.comparing.calibration import FOLDER, noise_of, read_calibration
from attnbench.benchmark.measuring import setting
from attnbench.benchmark.records import store
from attnbench.benchmark.records.record import Record

NUMBERS = itertools.count()


@dataclass
class Measured:
    """Stands for a measuring session: the same code, with a known noise."""

    path: Path
    processes: int
    status: str

    def measure(self, into: list[Record]) -> None:
        number = next(NUMBERS)
        times = np.exp(np.random.default_rng(number).normal(0, 0.01, self.processes)).tolist()
        for process, time_s in enumerate(times):
            record = Record(
                run=self.path.stem,
                process=process,
                created=f"2026-01-01T00:00:{number % 60:02}+00:00",
                contract="c",
                subject="additive",
                case="b2",
                workload="bert_base",
                direction="forward",
                dtype="float32",
                device="cpu",
                status=self.status,
                reason="" if self.status == "ok" else "the machine was busy",
                time_s=time_s,
                machine=setting.here().machine,
            )
            store.append(self.path, record)
            into.append(record)


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command asked for; ``status`` is that of what it gets."""
    from attnbench.cli import benching

    asked: dict[str, Any] = {"status": "ok"}

    def start(*, results: Path, **rest: Any) -> Path:
        return store.run_path(results, f"run{next(NUMBERS)}")

    def plan(path: Path, *, processes: int, **rest: Any) -> Measured:
        asked.update(rest)
        return Measured(path, processes, asked["status"])

    monkeypatch.setattr(benching, "start", start)
    monkeypatch.setattr(benching, "plan", plan)
    return asked


def calibrate(folder: Path, *options: str) -> int:
    return cli.main(["calibrate", "--results", str(folder), *options])


def test_each_run_has_a_file_of_its_own_below_the_folder_of_runs(
    tmp_path: Path, session: dict[str, Any]
) -> None:
    assert calibrate(tmp_path, "--runs", "3", "--processes", "4") == 0
    files = list((tmp_path / FOLDER).glob("*.jsonl"))
    assert [len(list(store.read(file))) for file in files] == [4, 4, 4]
    assert not list(tmp_path.glob("*.jsonl"))


def test_calibrating_again_adds_to_what_is_known(tmp_path: Path, session: dict[str, Any]) -> None:
    for expected in (1, 3):
        assert calibrate(tmp_path, "--runs", "2") == 0
        (noise,) = noise_of(read_calibration(tmp_path)).values()
        assert noise.run_df == expected


def test_the_table_says_how_small_a_slowdown_will_be_seen(
    tmp_path: Path, session: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(tmp_path, "--runs", "10", "--processes", "10", "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert 0.5 < float(row["processes_%"]) < 2.0
    assert float(row["processes_%"]) < float(row["in_turn_%"]) < 20.0


def test_cases_and_contract_are_passed_on(tmp_path: Path, session: dict[str, Any]) -> None:
    calibrate(tmp_path, "additive", "--workload", "bert_base", "--cache", "cold", "--threads", "2")
    assert session["targets"] == ["additive"]
    assert (session["set_name"], session["workloads"]) == (None, ["bert_base"])
    assert (session["contract"].cache, session["contract"].threads) == ("cold", 2)


def test_a_machine_too_busy_to_be_calibrated_is_said_to_be_and_exits_with_4(
    tmp_path: Path, session: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    session["status"] = "void"
    assert calibrate(tmp_path, "--runs", "2", "--processes", "3") == 4
    out = capsys.readouterr().out
    assert "6 void: the machine was busy" in out


def test_a_damaged_calibration_is_one_clear_error(
    tmp_path: Path, session: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(tmp_path, "--runs", "2") == 0
    damaged = tmp_path / FOLDER / "x.jsonl"
    damaged.write_text("nonsense\n")
    run = next((tmp_path / FOLDER).glob("run*.jsonl"))
    assert cli.main(["compare", str(run), str(run), "--results", str(tmp_path)]) == 2
    assert "x.jsonl, line 1, is damaged" in capsys.readouterr().err


def test_noise_needs_two_processes_in_a_run() -> None:
    assert noise_of([]) == {}


def test_a_run_of_the_calibration_is_refused_as_a_side_of_the_comparison(
    tmp_path: Path, session: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert calibrate(tmp_path, "--runs", "2") == 0
    a, b = (str(path) for path in (tmp_path / FOLDER).glob("*.jsonl"))
    assert cli.main(["compare", a, b, "--results", str(tmp_path)]) == 2
    assert "and in the calibration" in capsys.readouterr().err
