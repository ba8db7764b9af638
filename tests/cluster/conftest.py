"""Clusters of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def scheduler() -> Iterator[Any]:
    """A scheduler with two workers under nannies, as ``dask worker`` starts them."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit=0
    ) as cluster:
        yield cluster


def _measuring(**names: str) -> Any:
    """A cluster of workers that measure, by their name the machine that each says it is on."""
    from distributed import Nanny, Scheduler, SpecCluster

    workers = {
        worker: {
            "cls": Nanny,
            "options": {
                "nthreads": 1,
                "memory_limit": 0,
                "resources": {"machine": 1},
                "env": {"ATTNBENCH_MACHINE": machine},
            },
        }
        for worker, machine in names.items()
    }
    options = {"dashboard_address": ":0", "port": 0, "host": "127.0.0.1"}
    return SpecCluster(scheduler={"cls": Scheduler, "options": options}, workers=workers)


@pytest.fixture
def two_machines() -> Iterator[Any]:
    """A scheduler with workers of two machines, of which this one plays both."""
    with _measuring(one="north", two="south") as cluster:
        yield cluster


@pytest.fixture
def shared_machine() -> Iterator[Any]:
    """A scheduler with two workers of one machine."""
    with _measuring(one="north", two="north") as cluster:
        yield cluster
