"""Kill a worker of a cluster at a random moment of a small check; compare what comes back.

    python benchmarks/lost_workers.py [RUNS]

Each run checks two scoring functions on two seeds on a Dask cluster of this machine with two
workers, one of which is killed. Its outcomes have to be those of a run without a kill: none lost,
none twice, none different (but for the seconds).
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from dataclasses import replace
from typing import Any

NAMES = ("keeps_the_contract", "weights_sum_to_one", "masked_weights_are_zero")
OPTIONS = {"profile": "quick", "device": "cpu", "dtypes": None}


def outcomes(address: str) -> list[Any]:
    from attnbench.checking.parallel import run_checks
    from attnbench.checking.work import works_of

    pairs = [("dot", "dot"), ("scaled_dot", "scaled_dot")]
    works = [replace(w, seed=seed) for seed in (0, 1) for w in works_of(pairs, NAMES)]
    limits: dict[str, Any] = {"jobs": 1, "timeout_s": 300.0, "memory_gib": 2.0}
    found = run_checks(works, OPTIONS, **limits, cluster=address)
    return sorted((replace(o, seconds=0.0) for o in found), key=repr)


def cluster_of_two() -> Any:
    from distributed import LocalCluster

    return LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", memory_limit=0)


def main(runs: int) -> None:
    chance = random.Random(0)  # noqa: S311 -- moments, not secrets
    lost = twice = different = 0
    with cluster_of_two() as cluster:
        began = time.monotonic()
        expected = outcomes(cluster.scheduler_address)
        seconds = time.monotonic() - began
    for run in range(1, runs + 1):
        with cluster_of_two() as cluster:
            worker = chance.choice(list(cluster.workers.values()))
            moment = chance.uniform(0.0, seconds)
            killer = threading.Timer(moment, os.kill, (worker.pid, signal.SIGKILL))
            killer.start()
            found = outcomes(cluster.scheduler_address)
            killer.cancel()
            killer.join()
        named = [(one.subject, one.seed, one.invariant) for one in found]
        lost += len(expected) - len(set(named))
        twice += len(named) - len(set(named))
        others = [one for one in found if one not in expected]
        different += len(others)
        for one in others:
            print(f"  different: {one}")
        print(f"{run} runs: {lost} lost, {twice} twice, {different} different", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
