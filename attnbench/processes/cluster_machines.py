"""The machines of a cluster, each of which runs one task at a time, as benchmarks require.

A worker that measures has the Dask resource ``machine`` and, to measure an accelerator, ``GPU``.
Workers belong to one machine if they share its boot id, which its containers share as well. The
tasks of a machine go to one of its workers, and to another if that one is lost.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from attnbench import errors
from attnbench.processes.cluster import ClusterWorkers
from attnbench.processes.pool import Event, Task
from attnbench.processes.remote import machine_facts

MEASURING = "machine"
"""The Dask resource of a worker that measures."""

_LOOK_S = 0.5
_RETURN_S = 60.0
_LOSSES = 3


class MachineLostError(errors.AttnbenchError):
    """A machine has no worker left, and none came back."""

    exit_code = 3


class StoppedError(errors.AttnbenchError):
    """The run was stopped early."""


@dataclass(frozen=True)
class _Worker:
    """A worker that measures."""

    address: str
    machine: str
    name: str
    resources: Mapping[str, float]


class Machines:
    """The machines of a cluster that have workers for measuring.

    Args:
        cluster: the cluster.
        accelerator: whether only workers with the resource ``GPU`` are used.

    Raises:
        UsageError: there is no worker left for measuring.
    """

    def __init__(self, cluster: ClusterWorkers, *, accelerator: bool = False) -> None:
        self.cluster = cluster
        self.stopped = threading.Event()
        self._requirements = {MEASURING, "GPU"} if accelerator else {MEASURING}
        self._workers: dict[str, _Worker] = {}
        self._lock = threading.Lock()
        picks: dict[str, _Worker] = {}
        for worker in self.workers():
            rival = picks.get(worker.machine)
            if rival is None or len(worker.resources) > len(rival.resources):
                picks[worker.machine] = worker
        if not picks:
            raise errors.UsageError(
                "the cluster's workers went while they were asked where they are: no worker that "
                "measures is left."
            )
        names = Counter(worker.name for worker in picks.values())
        self.all = [
            Machine(self, worker, worker.name if names[worker.name] == 1 else _long_name(worker))
            for worker in sorted(picks.values(), key=lambda worker: (worker.name, worker.address))
        ]

    def workers(self) -> list[_Worker]:
        """The present workers for measuring."""
        with self._lock:
            resources = {
                address: info["resources"]
                for address, info in self.cluster.workers().items()
                if self._requirements <= {name for name, n in info["resources"].items() if n >= 1}
            }
            addresses = [address for address in resources if address not in self._workers]
            # a worker may be lost after it was listed; it is then left out
            options = {"workers": addresses, "on_error": "ignore"}
            facts = self.cluster.client.run(machine_facts, **options) if addresses else {}
            for address, (machine, name) in facts.items():
                self._workers[address] = _Worker(address, machine, name, resources[address])
            return [self._workers[address] for address in resources if address in self._workers]

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()


def _long_name(worker: _Worker) -> str:
    return f"{worker.name}-{worker.address.partition('://')[2].rpartition(':')[0]}"


class Machine:
    """One machine of a cluster."""

    def __init__(self, machines: Machines, worker: _Worker, name: str) -> None:
        self.name = name
        self._machines, self._worker = machines, worker
        names = (MEASURING, "GPU")  # all of them, so that nothing else runs while it measures
        self._resources = {n: worker.resources[n] for n in names if worker.resources.get(n)}

    @property
    def has_accelerator(self) -> bool:
        """Whether its worker has the resource ``GPU``."""
        return "GPU" in self._resources

    def call(self, task: Task) -> Any:
        """Run one task and return its value; see :func:`attnbench.processes.pool.call`.

        Raises:
            AttnbenchError: the function raised it, and its message begins with the machine's name,
                or (``PluginError``) the process ended.
        """
        value = None
        with contextlib.closing(self.events(task)) as events:  # before the cluster is closed
            for event in events:
                if event.kind == "value":
                    value = event.value
                elif event.kind != "done":
                    kind = type(event.error) if event.error is not None else errors.PluginError
                    raise kind(f"on {self.name}: {event.reason}")
        return value

    def events(self, task: Task) -> Generator[Event]:
        """Run a task and yield its events; if a worker is lost, use another one of this machine.

        Raises:
            MachineLostError: no worker of this machine is left.
            StoppedError: the machines were closed.
            UsageError: the scheduler was lost.
        """
        for losses in itertools.count(1):
            address = self._address()
            future = self._machines.cluster.send(task, self._resources, [address])
            try:
                while not future.done() and address in self._machines.cluster.workers():
                    if self._machines.stopped.is_set():
                        raise StoppedError
                    with contextlib.suppress(Exception):  # reported when the task has ended
                        future.result(timeout=_LOOK_S)
                if future.done():
                    yield from self._machines.cluster.ended(task, future)
                    return
            finally:
                future.cancel(force=True)
            if losses == _LOSSES:
                reason = f"the workers that ran it on {self.name} were lost, {losses} in a row"
                yield Event(task, "crashed", reason=reason)
                return

    def _address(self) -> str:
        """The address of a worker of this machine with the resources of the first one."""
        key = (self._worker.machine, self._resources)
        deadline = time.monotonic() + _RETURN_S
        while time.monotonic() < deadline and not self._machines.stopped.is_set():
            for worker in self._machines.workers():
                resources = {name: worker.resources.get(name) for name in self._resources}
                if (worker.machine, resources) == key:
                    return worker.address
            self._machines.stopped.wait(_LOOK_S)
        if self._machines.stopped.is_set():
            raise StoppedError
        raise MachineLostError(
            f"the machine {self.name} was lost: it has no worker that measures, and none came back "
            f"within {_RETURN_S:g} s. What was recorded stays, and --resume goes on with the rest."
        )
