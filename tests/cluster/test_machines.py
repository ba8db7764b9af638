"""Benchmarks on a Dask cluster of this machine, whose workers are on two of its addresses."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from attnbench.processes import cluster as module
from attnbench.processes.cluster import ClusterWorkers, Machine, MachineLostError, machines
from attnbench.processes.pool import Task
from tests.cli_runs import python, started

NORTH, SOUTH = "127.0.0.1", "127.0.0.2"
BENCH = ("bench", "dot", "--set", "smoke", "--processes", "1", "--run", "r")


@pytest.fixture
def two(two_machines: Any) -> Iterator[list[Machine]]:
    with ClusterWorkers(two_machines.scheduler_address, resources=["machine"]) as workers:
        yield machines(workers)


def attnbench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return python("-m", "attnbench", *arguments, folder=cwd)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def rows_by_machine(done: subprocess.CompletedProcess[str]) -> Counter[str]:
    assert done.returncode == 0, done.stderr
    return Counter(r["machine"]["name"] for r in json.loads(done.stdout)["records"])


def test_every_machine_measures_every_row_and_says_so(tmp_path: Path, two_machines: Any) -> None:
    where = ("--cluster", two_machines.scheduler_address)
    done = attnbench(*BENCH, *where, "--json", cwd=tmp_path)
    assert rows_by_machine(done) == {NORTH: 6, SOUTH: 6}
    for name, file in zip((NORTH, SOUTH), json.loads(done.stdout)["files"], strict=True):
        records = lines(tmp_path / file)
        assert Path(file).name == f"r-{name}.jsonl"
        assert {r["machine"]["name"] for r in records} == {name}
        assert all(r["ratio"] and r["sentinel"] for r in records)


def test_a_task_of_a_worker_that_is_lost_runs_again_on_its_machine(
    two: list[Machine], two_machines: Any
) -> None:
    (north, _) = two
    assert north.name == NORTH
    north.call(Task("t", "worker_tasks:interval", {"seconds": 0.0}))
    nanny = two_machines.workers["one"]
    killer = threading.Timer(1.0, os.kill, (nanny.pid, signal.SIGKILL))
    killer.start()
    events = list(north.events(Task("t", "worker_tasks:many", {"count": 4, "pause": 1.0})))
    killer.join()
    assert [event.kind for event in events] == ["value"] * 4 + ["done"]
    assert [event.value for event in events[:-1]] == [0, 1, 2, 3]


def test_a_machine_that_is_gone_is_named_and_the_other_goes_on(
    two: list[Machine], two_machines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RETURN_S", 1.0)
    two_machines.scale(1)  # Dask ends those that came last
    until = time.monotonic() + 60
    while len(left := two[0].cluster.hosts(["machine"])) > 1:
        assert time.monotonic() < until
        time.sleep(0.1)
    for machine in two:
        if machine.name in left:
            assert len(machine.call(Task("t", "worker_tasks:interval", {"seconds": 0.0}))) == 2
        else:
            with pytest.raises(MachineLostError, match=f"the machine {machine.name} was lost"):
                machine.call(Task("t", "worker_tasks:interval", {"seconds": 0.0}))


def test_a_task_that_is_taken_back_ends_on_its_worker(two: list[Machine], tmp_path: Path) -> None:
    path = tmp_path / "process"
    future = two[0].cluster.send(Task("hangs", "worker_tasks:hang_and_say", {"path": str(path)}))
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.1)
    process = psutil.Process(int(path.read_text()))
    future.cancel(force=True)
    process.wait(timeout=20)


@contextlib.contextmanager
def dask(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Dask's command line, such as a scheduler."""
    command = [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=30)


@contextlib.contextmanager
def cluster_of_processes(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A scheduler that can be killed, with a worker that measures."""
    address = f"tcp://127.0.0.1:{port}"
    where = ("--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    options = ("--nthreads", "1", "--no-dashboard", "--resources", "machine=1")
    with dask("scheduler", *where) as scheduler, dask("worker", address, *options):
        yield scheduler


def test_a_lost_scheduler_is_one_line_and_the_same_run_takes_the_rest(tmp_path: Path) -> None:
    results = tmp_path / "results" / "attnbench"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ("--cluster", f"tcp://127.0.0.1:{port}")
    with cluster_of_processes(port) as scheduler:
        process = started(*BENCH, *where, folder=tmp_path)
        until = time.monotonic() + 300
        while sum(len(lines(path)) for path in results.glob("*.jsonl")) < 2:
            assert process.poll() is None, "it ended by itself"
            assert time.monotonic() < until
            time.sleep(0.05)
        scheduler.kill()
        _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "Traceback" not in said
    line = said.splitlines()[-1]
    assert line.startswith("attnbench: the scheduler was lost")
    assert "--run NAME" in line
    (path,) = results.glob("*.jsonl")
    taken = lines(path)
    with cluster_of_processes(port):
        done = attnbench(*BENCH, *where, "--json", cwd=tmp_path)
    assert rows_by_machine(done) == {NORTH: 6}
    assert lines(path)[: len(taken)] == taken


@pytest.mark.parametrize(
    ("more", "resource"), [((), "machine=1"), (("--device", "cuda"), "machine=1, GPU=1")]
)
def test_a_cluster_without_workers_that_measure_is_one_line(
    tmp_path: Path, scheduler: Any, more: tuple[str, ...], resource: str
) -> None:
    done = attnbench(*BENCH, *more, "--cluster", scheduler.scheduler_address, cwd=tmp_path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert f"has the resource {resource}" in line
    assert f'--resources "{resource}"' in line
