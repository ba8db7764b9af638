"""Checks on a Dask cluster of this machine: the same outcomes, whatever happens to a worker."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest

from attnbench.errors import UsageError
from attnbench.processes.cluster import ClusterWorkers
from attnbench.processes.pool import Event, Task
from tests.cli_runs import python, started

HERE = Path(__file__).parents[1]
FEW = ("weights_sum_to_one", "masked_weights_are_zero", "output_lies_within_values")


@pytest.fixture
def workers(scheduler: Any) -> Iterator[ClusterWorkers]:
    with ClusterWorkers(scheduler.scheduler_address) as found:
        yield found


def ended(workers: ClusterWorkers, *tasks: Task) -> list[Event]:
    for task in tasks:
        workers.submit(task)
    return list(workers.events())


def check(*arguments: str, cwd: Path) -> tuple[int, list[dict[str, Any]]]:
    invariants = ["--json", *(word for name in FEW for word in ("--invariant", name))]
    words = ("check", "additive", "dot", "--profile", "quick", *invariants, *arguments)
    done = python("-m", "attnbench", *words, folder=cwd)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, [{**o, "seconds": 0} for o in json.loads(done.stdout)["outcomes"]]


def test_outcomes_order_and_exit_code_are_those_of_this_machine(
    tmp_path: Path, scheduler: Any
) -> None:
    file = tmp_path / "scheduler.json"
    file.write_text(json.dumps({"address": scheduler.scheduler_address}))
    assert check("--cluster", str(file), cwd=tmp_path) == check(cwd=tmp_path)


def test_a_task_that_hangs_or_dies_is_one_outcome_and_its_worker_goes_on(
    workers: ClusterWorkers,
) -> None:
    events = ended(
        workers,
        Task("hangs", "worker_tasks:hang_after", {"count": 0}, timeout_s=1.0),
        Task("dies", "worker_tasks:kill_itself"),
        *(Task(f"counts {n}", "worker_tasks:many", {"count": 1}) for n in range(4)),
    )
    kinds = {event.task.name: event.kind for event in events}
    assert kinds["hangs"] == "timeout"
    assert kinds["dies"] == "crashed"
    assert Counter(kinds.values())["done"] == 4


def test_the_tasks_of_a_worker_that_is_lost_run_again_none_lost_and_none_twice(
    scheduler: Any,
) -> None:
    tasks = [Task(str(n), "worker_tasks:many", {"count": 2, "pause": 0.2}) for n in range(12)]
    with ClusterWorkers(scheduler.scheduler_address) as workers:
        nanny = next(iter(scheduler.workers.values()))
        killer = threading.Timer(1.5, os.kill, (nanny.pid, signal.SIGKILL))
        killer.start()
        events = ended(workers, *tasks)
        killer.join()
    values = Counter((event.task.name, event.value) for event in events if event.kind == "value")
    assert values == Counter({(str(n), v): 1 for n in range(12) for v in range(2)})
    assert Counter(event.kind for event in events)["done"] == 12


def test_a_task_that_is_taken_back_ends_on_its_worker(
    workers: ClusterWorkers, tmp_path: Path
) -> None:
    path = tmp_path / "process"
    workers.submit(Task("hangs", "worker_tasks:hang_and_say", {"path": str(path)}))

    def awaited() -> None:
        with contextlib.suppress(UsageError):
            list(workers.events())

    threading.Thread(target=awaited, daemon=True).start()
    until = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.1)
    process = psutil.Process(int(path.read_text()))
    workers.__exit__()
    process.wait(timeout=20)


def test_a_lost_scheduler_is_one_line(scheduler: Any, workers: ClusterWorkers) -> None:
    workers.submit(Task("hangs", "worker_tasks:hang_after", {"count": 0}))
    closing = threading.Timer(1.0, scheduler.close)
    closing.start()
    with pytest.raises(UsageError, match="the scheduler was lost"):
        list(workers.events())
    closing.join()


def test_a_task_that_ends_each_worker_it_meets_is_crashed(workers: ClusterWorkers) -> None:
    (event,) = ended(workers, Task("deadly", "worker_tasks:kill_cluster_worker", timeout_s=60.0))
    assert event.kind == "crashed"
    assert "workers that ran it were lost" in event.reason


def test_other_versions_are_refused_with_the_difference(
    scheduler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = metadata.version
    other = {"torch": "2.11.0"}  # in this process only: workers look for themselves
    monkeypatch.setattr(metadata, "version", lambda name: other.get(name) or real(name))
    with pytest.raises(UsageError) as told:
        ClusterWorkers(scheduler.scheduler_address)
    assert f"torch: 2.11.0 here, {real('torch').partition('+')[0]} on tcp://" in str(told.value)


def test_an_address_that_does_not_answer_is_one_line_within_ten_seconds() -> None:
    began = time.monotonic()
    with pytest.raises(UsageError, match="no scheduler answers at tcp://127"):
        ClusterWorkers("tcp://127.0.0.1:1")
    assert time.monotonic() - began < 30


def test_a_scheduler_without_workers_is_one_line() -> None:
    from distributed import LocalCluster

    with (
        LocalCluster(n_workers=0, processes=True, dashboard_address=":0") as empty,
        pytest.raises(UsageError, match="has no workers; start one with"),
    ):
        ClusterWorkers(empty.scheduler_address)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("somewhere", "is none of tcp://HOST:PORT"),
        ("local:2", "start them with `dask worker`"),
        ("slurm", "dask_jobqueue.SLURMCluster"),
    ],
)
def test_a_place_that_cannot_be_is_one_clear_error(where: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ClusterWorkers(where)


def test_ctrl_c_leaves_the_cluster_no_task(scheduler: Any) -> None:
    from distributed import Client

    words = ("check", "dot", "additive", "-v", "--cluster", scheduler.scheduler_address)
    with started(*words) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    with Client(scheduler.scheduler_address, set_as_default=False) as client:
        left = client.run_on_scheduler(lambda dask_scheduler: len(dask_scheduler.tasks))
    assert left == 0
