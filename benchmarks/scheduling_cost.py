"""What Dask costs a task of a check on a cluster, beside running it.

    python benchmarks/scheduling_cost.py

Submits tasks that do nothing, and tells the processor time that each costs, and the time until all
answers are back. Client, scheduler and two workers are threads of this process here, and talk over
TCP, so that nothing is left out.
"""

from __future__ import annotations

import pickle
import statistics
import time
from unittest import mock

from attnbench.processes import cluster as clusters
from attnbench.processes.cluster import ClusterWorkers
from attnbench.processes.pool import Event, Task

TASKS, ROUNDS = 200, 5
_FUNCTION = "attnbench.checking.api:outcomes"


def nothing(task: bytes, setting: str) -> bytes:
    """Answer a task like :func:`attnbench.processes.remote.run_task`, without running it."""
    return pickle.dumps([Event(pickle.loads(task), "done")])  # noqa: S301 -- of this process


def main() -> None:
    """The command."""
    from distributed import LocalCluster

    arguments = {"target": "dot", "subject": "dot", "invariants": ["some_invariant"] * 10}
    places = {"n_workers": 2, "threads_per_worker": 1, "processes": False, "protocol": "tcp"}
    walls, processor = [], []
    with (
        mock.patch.object(clusters, "run_task", nothing),
        LocalCluster(**places, dashboard_address=None, memory_limit=0) as cluster,
        ClusterWorkers(cluster.scheduler_address) as workers,
    ):
        for _ in range(ROUNDS + 1):
            began, used = time.perf_counter(), time.process_time()
            for number in range(TASKS):
                workers.submit(Task(str(number), "attnbench.checking.api:outcomes", arguments))
            assert sum(event.kind == "done" for event in workers.events()) == TASKS
            walls.append((time.perf_counter() - began) * 1000 / TASKS)
            processor.append((time.process_time() - used) * 1000 / TASKS)
    for what, found in (("of processor time", processor), ("until all are back", walls)):
        rounds = " ".join(f"{one:.2f}" for one in found[1:])  # the first begins with imports
        print(f"{statistics.median(found[1:]):.2f} ms a task {what}, the median of {rounds}")


if __name__ == "__main__":
    main()
