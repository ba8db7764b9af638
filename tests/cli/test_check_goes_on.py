"""Check goes on when a subject hangs, crashes or hoards, and ends at once on Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cli_runs import SUM, outcome, run, started


def test_a_subject_that_hangs_timed_out_and_the_others_go_on() -> None:
    targets = ("bad_subjects.py:HANGS", "scaled_dot")
    result = run("check", *targets, *SUM, "--timeout", "12", "--json")
    assert result.code == 3
    assert outcome(result, "Hangs")["status"] == "timeout"
    assert "no answer within 12 s" in outcome(result, "Hangs")["reason"]
    assert outcome(result, "scaled_dot")["status"] == "passed"


def test_a_hang_in_one_invariant_keeps_the_outcomes_before_and_after_it() -> None:
    names = ("keeps_the_contract", "unit_variance", "weights_sum_to_one", "inputs_are_unchanged")
    chosen = [text for name in names for text in ("--invariant", name)]
    more = ("--profile", "quick", "--timeout", "6", "--json")
    result = run("check", "bad_subjects.py:HANGS_TRAINING", *chosen, *more)
    found = {o["invariant"]: o["status"] for o in result.json["outcomes"]}
    assert found["inputs_are_unchanged"] == "timeout"
    assert found["keeps_the_contract"] == found["weights_sum_to_one"] == "passed"
    assert result.code == 3


def test_a_subject_that_kills_its_process_crashed_and_is_begun_again_once() -> None:
    targets = ("bad_subjects.py:KILLS", "scaled_dot")
    names = ("keeps_the_contract", "weights_sum_to_one", "pools_values", "layouts_agree")
    chosen = [text for name in names for text in ("--invariant", name)]
    result = run("check", *targets, *chosen, "--profile", "quick", "--json", "-j", "2")
    assert result.code == 3
    reasons = [o["reason"] for o in result.json["outcomes"] if o["subject"] == "KillsItsProcess"]
    assert [reason.split()[0] for reason in reasons] == ["its", "its", "not", "not"]
    assert "SIGKILL" in reasons[0]
    assert result.json["counts"] == {"passed": 4, "crashed": 4}


def test_a_subject_over_its_memory_crashed_and_says_the_cap() -> None:
    result = run("check", "bad_subjects.py:HOARDS", *SUM, "--memory", "0.75", "--json")
    assert result.code == 3
    reason = outcome(result, "Hoards")["reason"]
    assert "over the cap of 0.75 GiB; --memory of attnbench check sets it" in reason


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    targets, mark = ("scaled_dot", "bad_subjects.py:HANGS"), tmp_path / "hangs"
    environment = {**os.environ, "ATTNBENCH_TESTS_HANGS": str(mark)}
    process = started("check", *targets, *SUM, "-j", "1", "--json", env=environment)
    until = time.monotonic() + 60
    while time.monotonic() < until and not mark.exists():
        time.sleep(0.1)
    yield process
    process.kill()
    process.communicate()


def test_ctrl_c_keeps_what_was_recorded_and_leaves_no_process(
    hanging: subprocess.Popen[str],
) -> None:
    parent = psutil.Process(hanging.pid)
    children = parent.children(recursive=True)
    started = time.monotonic()
    hanging.send_signal(signal.SIGINT)
    out, err = hanging.communicate(timeout=30)
    took = time.monotonic() - started
    assert hanging.returncode == 130, err
    assert [o["subject"] for o in json.loads(out)["outcomes"]] == ["scaled_dot"]
    assert "Traceback" not in err
    assert took < 10  # 2 s on an idle machine; a hang would be for 60
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []


def test_ctrl_c_in_a_terminal_while_the_server_imports_prints_no_traceback() -> None:
    process = started("check", "scaled_dot", "dot", start_new_session=True)
    until, parent = time.monotonic() + 60, psutil.Process(process.pid)
    while time.monotonic() < until and not _imports_torch(parent):
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    assert process.returncode == 130, err


def _imports_torch(parent: psutil.Process) -> bool:
    """Whether the server of the children has begun to, which takes over a second."""
    return any(
        "libtorch" in part.path for child in parent.children() for part in child.memory_maps()
    )
