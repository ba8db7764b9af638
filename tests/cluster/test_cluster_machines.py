"""Benchmarks on a Dask cluster of this machine, whose workers say that they are on two."""

from __future__ import annotations

import contextlib
import itertools
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from attnbench.errors import UsageError
from attnbench.processes import cluster as machines_module
from attnbench.processes.cluster import ClusterWorkers, MachineLostError, Machines
from attnbench.processes.pool import Task

HERE = Path(__file__).parents[1]
MAIN = (sys.executable, "-c", "import sys; from attnbench.cli import main; sys.exit(main())")
BENCH = ("bench", "dot", "--set", "smoke", "--processes", "1", "--run", "r")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.syspath_prepend(paths[0])  # a spawned worker has the path of this process


def opened(cluster: Any) -> Iterator[Machines]:
    with ClusterWorkers(cluster.scheduler_address, resources={"machine": 1}) as workers:
        yield Machines(workers)


@pytest.fixture
def two(importable: None, two_machines: Any) -> Iterator[Machines]:
    yield from opened(two_machines)


@pytest.fixture
def shared(importable: None, shared_machine: Any) -> Iterator[Machines]:
    yield from opened(shared_machine)


def attnbench(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*MAIN, *arguments], capture_output=True, text=True, check=False, cwd=cwd, timeout=600
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_every_machine_measures_every_row_and_says_so(tmp_path: Path, two_machines: Any) -> None:
    where = ("--cluster", two_machines.scheduler_address)
    done = attnbench(*BENCH, *where, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    rows = Counter((r["machine"]["name"], r["subject"], r["case"]) for r in told["records"])
    assert set(rows.values()) == {1}
    assert Counter(name for name, _, _ in rows) == {"north": 6, "south": 6}
    for name, file in zip(("north", "south"), told["files"], strict=True):
        records = lines(tmp_path / file)
        assert Path(file).name == f"r-{name}.jsonl"
        assert {r["machine"]["name"] for r in records} == {name}
        assert all(r["ratio"] and r["sentinel"] for r in records)


def test_ctrl_c_keeps_what_was_taken_and_the_same_run_takes_the_rest(
    tmp_path: Path, two_machines: Any
) -> None:
    where = ("--cluster", two_machines.scheduler_address)
    results = tmp_path / "results" / "attnbench"
    process = subprocess.Popen([*MAIN, *BENCH, *where], cwd=tmp_path, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 300
    while sum(len(lines(path)) for path in results.glob("*.jsonl")) < 3:
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < until
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    taken = {path.stem: lines(path) for path in results.glob("*.jsonl")}
    done = attnbench(*BENCH, *where, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)["records"]
    assert Counter(r["machine"]["name"] for r in records) == {"north": 6, "south": 6}
    for run, earlier in taken.items():
        assert lines(results / f"{run}.jsonl")[: len(earlier)] == earlier


def test_a_machine_runs_one_task_at_a_time_however_many_workers_it_has(shared: Machines) -> None:
    (north,) = shared.all
    found: list[list[float]] = []

    def call() -> None:
        found.append(north.call(Task("t", "worker_tasks:interval", {"seconds": 0.3})))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.sort()
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(found))


def test_a_task_of_a_worker_that_is_lost_runs_again_on_its_machine(
    two: Machines, two_machines: Any
) -> None:
    north = two.all[0]
    assert north.name == "north"
    north.call(Task("t", "worker_tasks:interval", {"seconds": 0.0}))
    nanny = two_machines.workers["one"]
    killer = threading.Timer(1.0, os.kill, (nanny.pid, signal.SIGKILL))
    killer.start()
    events = list(north.events(Task("t", "worker_tasks:many", {"count": 4, "pause": 1.0})))
    killer.join()
    assert [event.kind for event in events] == ["value"] * 4 + ["done"]
    assert [event.value for event in events[:-1]] == [0, 1, 2, 3]


def test_a_task_that_ends_each_worker_it_meets_is_crashed(two: Machines) -> None:
    (event,) = two.all[0].events(Task("t", "worker_tasks:kill_cluster_worker", timeout_s=60.0))
    assert event.kind == "crashed"
    assert "workers that ran it" in event.reason


def test_a_machine_that_is_gone_is_named_and_the_other_goes_on(
    two: Machines, two_machines: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines_module, "_RETURN_S", 1.0)
    two_machines.scale(1)  # Dask ends those that came last
    until = time.monotonic() + 60
    while len(two.workers()) > 1:
        assert time.monotonic() < until
        time.sleep(0.1)
    ((_, left),) = two.workers().values()
    for machine in two.all:
        if machine.name == left:
            assert len(machine.call(Task("t", "worker_tasks:interval", {"seconds": 0.0}))) == 2
        else:
            with pytest.raises(MachineLostError, match=f"the machine {machine.name} was lost"):
                machine.call(Task("t", "worker_tasks:interval", {"seconds": 0.0}))


def test_a_task_that_is_taken_back_ends_on_its_worker(two: Machines, tmp_path: Path) -> None:
    path = tmp_path / "process"
    future = two.cluster.send(Task("hangs", "worker_tasks:hang_and_say", {"path": str(path)}))
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
    environment = {**os.environ, "ATTNBENCH_MACHINE": "north"}
    command = [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
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


def until_taken(process: subprocess.Popen[Any], results: Path, count: int) -> None:
    until = time.monotonic() + 300
    while sum(len(lines(path)) for path in results.glob("*.jsonl")) < count:
        assert process.poll() is None, "it ended by itself"
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_lost_scheduler_is_one_line_and_the_same_run_takes_the_rest(tmp_path: Path) -> None:
    results = tmp_path / "results" / "attnbench"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = ("--cluster", f"tcp://127.0.0.1:{port}")
    with cluster_of_processes(port) as scheduler:
        process = subprocess.Popen(
            [*MAIN, *BENCH, *where], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        until_taken(process, results, 2)
        scheduler.kill()
        _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert b"Traceback" not in said
    line = said.decode().splitlines()[-1]
    assert line.startswith("attnbench: the scheduler was lost")
    assert "--run NAME" in line
    (path,) = results.glob("*.jsonl")
    taken = lines(path)
    with cluster_of_processes(port):
        done = attnbench(*BENCH, *where, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = json.loads(done.stdout)["records"]
    assert Counter(r["machine"]["name"] for r in records) == {"north": 6}
    assert lines(path)[: len(taken)] == taken


def test_two_benchmarks_on_one_cluster_record_each_their_own(
    tmp_path: Path, shared_machine: Any
) -> None:
    where = ("--cluster", shared_machine.scheduler_address, "--json")
    with ThreadPoolExecutor(2) as pool:
        found = list(
            pool.map(lambda run: attnbench(*BENCH[:-1], run, *where, cwd=tmp_path), ("a", "b"))
        )
    for run, done in zip(("a", "b"), found, strict=True):
        assert done.returncode == 0, done.stderr
        records = json.loads(done.stdout)["records"]
        assert Counter(r["run"] for r in records) == {f"{run}-north": 6}


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


def test_a_worker_that_goes_before_it_is_asked_where_it_is_costs_nothing(
    two: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dask

    there = two.cluster.workers()
    gone = {"tcp://127.0.0.1:9": {"resources": {"machine": 1}, "nthreads": 1}}
    monkeypatch.setattr(two.cluster, "workers", lambda: {**there, **gone})
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        assert set(two.workers()) == set(there)
    monkeypatch.setattr(two.cluster, "workers", dict)
    with pytest.raises(UsageError, match="no worker that measures is left"):
        Machines(two.cluster)
