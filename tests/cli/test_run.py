"""The commands that measure, as a user runs them."""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from attnbench.benchmark import records as store
from attnbench.benchmark.session import Session
from attnbench.checking.check_report import CheckReport
from attnbench.checking.outcomes import Outcome
from attnbench.cli import check_run
from attnbench.cli.run import table
from attnbench.saved_inputs import save_inputs
from tests.cli_runs import python, run, started
from tests.measured_records import record as recorded

BAD = """
import ctypes, time
import torch
import attnbench


class Scoring(torch.nn.Module):
    def __init__(self, act):
        super().__init__()
        self.act = act

    def forward(self, query, key):
        self.act()
        return query @ key.mT / query.shape[-1] ** 0.5


def spec(name, act):
    return attnbench.ScoringSpec(name=name, make=lambda q, k: Scoring(act))


SPECS = [
    spec("dies", lambda: ctypes.string_at(0)),
    spec("hangs", lambda: time.sleep(100)),
    spec("hoards", lambda: torch.zeros(2**50)),
    spec("raises", lambda: 1 / 0),
    spec("works", lambda: None),
]
"""


def attnbench(*arguments: str, cwd: Path) -> Any:
    return python("-m", "attnbench", *arguments, folder=cwd)


def records(folder: Any) -> Any:
    (path,) = folder.glob("results/attnbench/*.jsonl")
    return list(store.read(path))


def test_bench_records_every_case_and_a_run_gone_on_with_measures_only_what_is_missing(
    tmp_path: Path,
) -> None:
    arguments = ("bench", "dot", "--set", "smoke", "--json")
    first = attnbench(*arguments, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    shown = json.loads(first.stdout)
    found = records(tmp_path)
    assert len(found) == 3 * len(shown["records"]) == 3 * 6
    assert all(len(row["ratios"]) == 3 for row in shown["records"])
    assert {record.subject for record in found} == {"dot", "scaled_dot"}
    assert {record.status for record in found} == {"ok"}
    for record in found:
        assert record.time_s > 0
        assert record.baseline == "scaled_dot"
        assert record.run in shown["files"][0]
        assert record.command == "attnbench " + " ".join(arguments)
        assert record.machine["cores"] == os.cpu_count()
        assert set(record.versions) == {"python", "torch", "attnbench"}
    held = [record for record in found if record.ratio_low is not None]
    assert held  # a busy machine may leave some too few pairs for an interval
    assert all(record.ratio_low <= record.ratio <= record.ratio_high for record in held)

    (path,) = (tmp_path / file for file in shown["files"])
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + lines[4][:99])  # as a killed run leaves it
    second = attnbench(*arguments, "--run", path.stem, cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    again = records(tmp_path)
    assert again[:4] == found[:4]
    assert {(*record.key, record.process) for record in again} == {
        (*record.key, record.process) for record in found
    }
    assert len(again) == len(found)
    assert len(json.loads(second.stdout)["records"]) == 6


def test_bench_measures_a_layer_at_a_length_that_no_set_has(tmp_path: Path) -> None:
    arguments = ("bench", "alibi_attention", "--length", "48", "--device", "cpu")
    done = run(*arguments, "--processes", "1", folder=tmp_path)
    assert done.code == 0, done.err
    found = {(record.subject, record.direction, record.kv_len) for record in records(tmp_path)}
    assert found == {
        (subject, direction, 48)
        for subject in ("alibi_attention", "causal_attention")
        for direction in ("prefill", "decode")
    }
    assert {record.status for record in records(tmp_path)} == {"ok"}


def test_a_subject_that_dies_hangs_or_hoards_is_recorded_so_and_the_run_goes_on(
    tmp_path: Path,
) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    done = attnbench(
        "bench",
        "bad.py:SPECS",
        "--workload",
        "gpt2_decode",
        "--timeout",
        "10",
        cwd=tmp_path,
    )
    statuses = {record.subject: record.status for record in records(tmp_path)}
    assert statuses.pop("works") == "ok", done.stdout
    assert statuses.pop("scaled_dot") == "ok"
    assert statuses == {
        "dies": "crashed",
        "hangs": "timeout",
        "hoards": "out_of_memory",
        "raises": "failed",
    }
    assert done.returncode == 3
    assert "SIGSEGV" in done.stdout
    assert "ZeroDivisionError" in done.stdout


def test_a_run_killed_at_any_moment_keeps_what_it_took_and_can_be_resumed(tmp_path: Path) -> None:
    arguments = ["bench", "dot", "--set", "smoke", "--run", "mine", "--processes", "4"]
    path = store.run_path(tmp_path / "results" / "attnbench", "mine")
    chance = random.Random(1)

    def lines() -> list[bytes]:
        return path.read_bytes().split(b"\n")[:-1] if path.exists() else []

    kept: list[bytes] = []
    for attempt in range(3):
        process = started(*arguments, folder=tmp_path)
        until = time.monotonic() + 60
        while time.monotonic() < until and process.poll() is None and len(lines()) <= len(kept):
            time.sleep(0.02)
        time.sleep(chance.uniform(0.0, 0.1))
        process.kill()
        process.communicate()
        before, kept = kept, lines()
        assert kept[: len(before)] == before
        assert len(kept) > len(before), f"attempt {attempt} recorded nothing"
    done = attnbench(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert lines()[: len(kept)] == kept
    whole = store.read(path)
    assert len(whole) == len({(*record.key, record.process) for record in whole}) == 6 * 4


def test_run_prints_one_table_of_checks_and_times(tmp_path: Path) -> None:
    done = attnbench("run", "additive", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("additive", "scaled_dot", "times: forward", "±", "checks"):
        assert word in done.stdout
    assert done.stdout.splitlines()[-1].startswith("Next: attnbench check additive --profile")
    assert {r.subject for r in records(tmp_path)} == {"additive", "scaled_dot"}
    (checks,) = tmp_path.glob("results/attnbench/*.checks.json")
    assert json.loads(checks.read_text())["outcomes"]


def test_a_file_of_checks_that_cannot_be_written_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "new_run", lambda: "mine")
    monkeypatch.setattr(check_run.Check, "run", lambda self: None)
    monkeypatch.setattr(Session, "records", lambda self, done: iter(()))
    (tmp_path / "mine.checks.json").mkdir()
    done = run("run", "dot", "--device", "cpu", "--results", str(tmp_path))
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "mine.checks.json: cannot write this file" in done.err


def test_bench_measures_the_users_own_inputs(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 8, generator=generator) for n in (5, 7, 7))
    save_inputs(tmp_path / "mine.safetensors", q, k, v, attn_mask=torch.ones(5, 7).bool())
    words = ("additive", "--inputs", "mine.safetensors", "--processes", "1")
    done = run("bench", *words, folder=tmp_path)
    assert done.code == 0, done.err
    found = records(tmp_path)
    assert {(r.subject, r.q_len, r.kv_len, r.mask) for r in found} == {
        (name, 5, 7, "boolean") for name in ("additive", "scaled_dot")
    }
    assert {len(r.inputs["sha256"]) for r in found} == {64}


def test_the_table_of_a_run_has_a_row_a_subject_with_its_checks_and_a_cell_a_case() -> None:
    report = CheckReport(
        (
            Outcome("mine", "weights_sum_to_one", "passed"),
            Outcome("mine", "layouts_agree", "failed"),
            Outcome("mine", "leading_sizes_fold", "skipped"),
        )
    )
    paired = {"baseline": "scaled_dot", "ratio": 2.0, "ratio_low": 1.0, "ratio_high": 4.0}
    rows = table(report, [recorded("mine", **paired), recorded("scaled_dot", **paired)])
    assert [(row["subject"], row["checks"]) for row in rows] == [
        ("scaled_dot", "-"),
        ("mine", "1/2"),
    ]
    (case,) = {*rows[0]} - {"subject", "checks"}
    assert rows[1][case] == "2 ± 100%"
    failed = recorded("mine", status="crashed", time_s=None)
    assert table(report, [failed])[0][case] == "crashed"


def test_a_run_is_not_gone_on_with_under_another_baseline(tmp_path: Path) -> None:
    words = ("bench", "dot", "--set", "smoke", "--processes", "1", "--run", "mine")
    assert run(*words, folder=tmp_path).code == 0
    done = run(*words, "--baseline", "additive", folder=tmp_path)
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert "began with the baseline scaled_dot, but now it is additive" in done.err


def test_a_run_that_another_process_records_is_one_line_and_not_mixed_in(tmp_path: Path) -> None:
    with store.claimed(store.run_path(tmp_path, "mine")):
        result = run("bench", "dot", "--run", "mine", "--results", str(tmp_path))
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert "run 'mine' is being recorded by another process" in result.err
    with store.claimed(store.run_path(tmp_path, "mine")):
        pass
