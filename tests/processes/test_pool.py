"""Child processes: whatever a subject does, the run goes on, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from attnbench.errors import UnknownNameError
from attnbench.processes.pool import Event, Task, Workers, call
from tests.cli_runs import python

HERE = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def task(name: str, *, timeout_s: float = 60.0, memory_gib: float = 2.0, **arguments: Any) -> Task:
    function = f"worker_tasks:{name}"
    return Task(name, function, arguments, timeout_s=timeout_s, memory_gib=memory_gib)


def run(*tasks: Task, jobs: int = 1) -> list[Event]:
    with Workers(jobs) as workers:
        for one in tasks:
            workers.submit(one)
        return list(workers.events())


def last(*tasks: Task) -> Event:
    return run(*tasks)[-1]


def test_a_function_runs_in_a_child_with_one_thread_and_tensors_without_the_main_script() -> None:
    value = call(task("described", number=3))
    assert (value["number"], value["threads"], value["sum"], value["main"]) == (3, 1, 9.0, None)


def test_a_child_sees_the_variables_set_since_the_server_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call(task("described", number=1))
    monkeypatch.setenv("ATTNBENCH_DISABLED_PLUGINS", "one")
    assert call(task("described", number=1))["variable"] == "one"
    monkeypatch.delenv("ATTNBENCH_DISABLED_PLUGINS")
    assert call(task("described", number=1))["variable"] is None


def test_tasks_submitted_while_events_are_read_are_run() -> None:
    seen = []
    with Workers() as workers:
        workers.submit(task("many", count=1))
        for event in workers.events():
            seen.append((event.task.arguments["count"], event.kind))
            if event.kind == "done" and len(seen) == 2:
                workers.submit(task("many", count=0))
    assert seen == [(1, "value"), (1, "done"), (0, "done")]


def test_what_a_child_prints_does_not_reach_the_output(capfd: pytest.CaptureFixture[str]) -> None:
    assert call(task("noisy")) == "quiet"
    assert capfd.readouterr() == ("", "")


def test_a_hang_is_a_timeout_and_keeps_the_values_before_it() -> None:
    events = run(task("hang_after", count=2, timeout_s=1.0), task("many", count=1))
    assert [e.kind for e in events] == ["value", "value", "timeout", "value", "done"]
    head, _, *stack = events[2].reason.splitlines()
    assert head == "no answer within 1 s"
    assert any("worker_tasks.py" in line and "in hang_after" in line for line in stack)


def test_a_child_that_kills_itself_crashed_and_says_how_and_its_last_words() -> None:
    event = last(task("kill_itself"))
    assert event.kind == "crashed"
    assert event.reason == "its process was ended by SIGKILL\n  | about to die"


def test_a_segmentation_fault_crashed_and_names_the_line() -> None:
    event = last(task("segfault"))
    assert event.kind == "crashed"
    assert "SIGSEGV" in event.reason
    assert "in segfault" in event.reason
    assert "multiprocessing" not in event.reason
    assert "child_process" not in event.reason


def test_what_one_command_preloads_is_not_left_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from multiprocessing import forkserver

    from attnbench.processes.pool import warm_up

    asked: list[list[str]] = []
    monkeypatch.setattr(forkserver, "ensure_running", lambda: None)
    monkeypatch.setattr(forkserver._forkserver, "set_forkserver_preload", asked.append)
    monkeypatch.setattr(forkserver, "set_forkserver_preload", asked.append)
    warm_up("json")
    warm_up()
    assert asked == [["torch", "json"], ["torch"]]


def test_only_the_pool_says_that_a_child_was_over_its_memory() -> None:
    event = last(task("say_over_the_cap_and_leave"))
    assert "over the cap" in event.reason
    assert not event.over_memory


def test_the_run_goes_on_after_each_way_to_die() -> None:
    ways = ["kill_itself", "segfault", "leave", "raise_value_error", "raise_exit"]
    events = run(*map(task, ways), task("many", count=1))
    assert [e.kind for e in events] == [*["crashed"] * 3, *["raised"] * 2, "value", "done"]


def test_an_error_of_attnbench_itself_is_raised_as_it_was() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'thing'"):
        call(task("raise_own"))


def test_leaving_early_ends_the_child_and_what_it_started() -> None:
    with Workers() as workers:
        workers.submit(task("hang_with_child"))
        pids = next(workers.events()).value
        assert _alive(pids, within_s=0.0) == pids
    assert _alive(pids) == []


def _alive(numbers: list[int], within_s: float = 5.0) -> list[int]:
    until = time.monotonic() + within_s
    while True:
        alive = [n for n in numbers if psutil.pid_exists(n) and not _is_zombie(n)]
        if not alive or time.monotonic() > until:
            return alive
        time.sleep(0.05)


def _is_zombie(number: int) -> bool:
    try:
        return bool(psutil.Process(number).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


PARENT = """
from attnbench.processes.pool import Task, Workers
with Workers() as workers:
    workers.submit(Task("x", "worker_tasks:hang_with_child"))
    for event in workers.events():
        print(*event.value, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_child_outlives_its_parent(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(HERE)},
        text=True,
    ) as parent:
        assert parent.stdout is not None
        pids = [int(text) for text in parent.stdout.readline().split()]
        parent.send_signal(number)
        parent.wait(timeout=10)
    assert len(pids) == 2
    assert _alive(pids) == []


SEMAPHORE = """
from attnbench.processes.pool import Task, Workers
with Workers() as workers:
    workers.submit(Task("x", "worker_tasks:leave_a_semaphore"))
    print(*[event.kind for event in workers.events()])
"""


def test_python_does_not_warn_of_what_a_killed_child_leaves() -> None:
    done = python("-c", SEMAPHORE, PYTHONPATH=str(HERE))
    assert done.stdout == "crashed\n"
    assert done.stderr == ""
