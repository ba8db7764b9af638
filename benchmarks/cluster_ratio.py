"""The time of checks on two workers of a local cluster over that of ``attnbench check -j 2``.

    python benchmarks/cluster_ratio.py [--rounds 6] [SUBJECT ...]

Both take turns with the same tasks, in the profile quick without what compiles. Processes are
started before, once for each way; how long that takes is told apart.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time

from attnbench.checking.outcomes import COMPILING
from attnbench.checking.parallel import PRELOAD, run_checks
from attnbench.checking.plan import plan
from attnbench.checking.work import works_of
from attnbench.processes.cluster import ClusterWorkers
from attnbench.processes.pool import Task, Workers, warm_up

SUBJECTS = ("additive", "bilinear", "dot", "gaussian", "scaled_dot", "self_additive")
CHOSEN = {"profile": "quick", "device": "cpu", "dtypes": None}


def main() -> None:
    """The command."""
    from distributed import LocalCluster  # asv imports this module, also without Dask

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("subjects", nargs="*", default=SUBJECTS)
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    found = plan(options.subjects, **CHOSEN, invariants=None)
    named = [name for name, _ in found["invariants"] if name not in COMPILING]
    works = works_of(found["subjects"], named, found["of_subject"])

    def seconds(cluster: ClusterWorkers | None) -> float:
        began = time.perf_counter()
        done = list(run_checks(works, CHOSEN, jobs=2, timeout_s=300, memory_gib=2, cluster=cluster))
        assert len(done) == sum(len(work.invariants) for work in works)
        return time.perf_counter() - began

    warm_up(*PRELOAD)
    began = time.perf_counter()
    places = {"n_workers": 2, "threads_per_worker": 1, "processes": True}
    with (
        LocalCluster(**places, dashboard_address=":0", memory_limit=0) as cluster,
        ClusterWorkers(cluster.scheduler_address, preload=PRELOAD) as workers,
    ):
        print(f"starting the cluster: {time.perf_counter() - began:.1f} s", flush=True)
        for way in (None, workers):  # starts the server process of each, which imports torch
            began = time.perf_counter()
            with Workers(2) if way is None else contextlib.nullcontext(workers) as one:
                for _ in range(2):
                    one.submit(Task("ready", "os:getpid", {}))
                list(one.events())
            print(f"first task: {time.perf_counter() - began:.1f} s", flush=True)
        ratios: list[float] = []
        for number in range(options.rounds):
            ways = [None, workers] if number % 2 else [workers, None]
            took = {way is workers: seconds(way) for way in ways}
            ratios.append(took[True] / took[False])
            print(
                f"-j 2 {took[False]:.1f} s, two workers {took[True]:.1f} s, {ratios[-1]:.3f} times",
                flush=True,
            )
    print(f"{statistics.median(ratios):.3f} times, median of {options.rounds} rounds")


if __name__ == "__main__":
    main()
