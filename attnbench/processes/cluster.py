"""Tasks on a Dask cluster, with the face of the pool of this machine.

A worker runs each task in a child of its own, with the same limits as on this machine; if a worker
is lost, its tasks run again elsewhere. For benchmarks a :class:`Machine` runs one task at a time.
Its workers have the Dask resource ``machine`` (and ``GPU`` to measure an accelerator) and share a
boot of the system, as containers do.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import logging
import multiprocessing
import os
import pickle
import platform
import threading
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.errors import AttnbenchError, PluginError, UsageError, message_of
from attnbench.processes.pool import Event, Task, Workers, warm_up
from attnbench.registry.versions import installed_versions

MEASURING = "machine"
"""The Dask resource of a worker that measures."""
MACHINE_VARIABLE = "ATTNBENCH_MACHINE"
"""Environment variable of a worker with a name for its machine, instead of its host name."""

_ANSWER_S = 10.0
_LOOK_S = 0.5
_RETURN_S = 60.0
_LOSSES = 3


class UnencryptedWarning(UserWarning):
    """Tasks cross a network unencrypted."""


class MachineLostError(AttnbenchError):
    """A machine has no worker left, and none came back."""

    exit_code = 3


def run_task(pickled: bytes, preload: Sequence[str]) -> bytes:
    """Run a task on a worker; returns its events, of which the last says how it ended.

    Both are pickled here, since Dask would search containers for its keys and measure them.
    """
    # a worker under a nanny is a daemon, which multiprocessing would allow no children
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    warm_up(*preload)
    events: list[Event] = []
    with Workers() as workers:
        workers.stopped = _is_cancelled()
        workers.submit(pickle.loads(pickled))  # noqa: S301 -- of the client, which may run code here
        events.extend(workers.events())
    return pickle.dumps(events)


def _is_cancelled() -> Any:
    """A function that says whether the task of this thread was cancelled; Dask does not stop it."""
    from distributed import get_worker

    worker = get_worker()
    task = worker.state.tasks.get(worker.get_current_task())
    return lambda: task is not None and task.state == "cancelled"


def machine_facts() -> tuple[str, str]:
    """An identifier of the worker's machine, and its name; host names may be ambiguous."""
    name = os.environ.get(MACHINE_VARIABLE, "")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = platform.node()
    return f"{boot} {name}", name or platform.node()


class ClusterWorkers:
    """Workers of a cluster that run submitted tasks.

    Args:
        where: address of a scheduler, or the file that ``--scheduler-file`` of Dask writes.
        preload: modules to import in the workers' children.
        resources: Dask resources that at least one worker must have.

    Raises:
        UsageError: Dask is not installed, nothing answers within 10 s, there are no workers, no
            worker has the resources, or a worker has other versions.
    """

    def __init__(
        self,
        where: str,
        *,
        preload: Sequence[str] = (),
        resources: Mapping[str, float] | None = None,
    ) -> None:
        try:
            import distributed
        except ImportError:
            raise UsageError(
                "--cluster needs Dask, which is not installed: pip install 'attnbench[cluster]'."
            ) from None
        # it logs a lost connection with a traceback; the user gets one line instead
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
        self._preload, self._run = tuple(preload), uuid.uuid4().hex[:12]
        self._queue: list[Task] = []
        self._tasks: dict[str, Task] = {}
        self._futures: dict[str, Any] = {}
        self._numbers = itertools.count()
        self.client = _client_of(where)
        try:
            self._check_workers(where, dict(resources or {}))
        except BaseException:
            self.client.close(timeout=5)
            raise
        self._completions = distributed.as_completed(loop=self.client.loop)

    def _check_workers(self, where: str, resources: Mapping[str, float]) -> None:
        """Check before the first task that workers have the resources and the same versions."""
        try:
            self.client.wait_for_workers(1, timeout=_ANSWER_S)
            remote_versions = self.client.run(installed_versions)
        except TimeoutError:
            raise UsageError(
                f"the cluster at {where} has no workers; start one with "
                f"`dask worker {self.client.scheduler.address}`."
            ) from None
        except ModuleNotFoundError as error:
            raise UsageError(
                f"a worker of the cluster at {where} cannot import {error.name}; install attnbench "
                "there, in the version that is here."
            ) from None
        if not any(resources.items() <= _whole(w).items() for w in self.workers().values()):
            text = ", ".join(f"{name}={n:g}" for name, n in resources.items())
            raise UsageError(
                f"no worker of the cluster at {where} has the resource {text}; start one with "
                f'`dask worker --resources "{text}"`.'
            )
        here = installed_versions()
        differences = [
            f"\n  {name}: {here.get(name, 'absent')} here, {there.get(name, 'absent')} on {address}"
            for address, there in remote_versions.items()
            for name in sorted({*here, *there})
            if here.get(name) != there.get(name)
        ]
        if differences:
            raise UsageError(
                f"the cluster at {where} has other versions, so that its outcomes could be "
                f"others:{''.join(differences)}\nInstall the same on both."
            )

    def workers(self) -> dict[str, Any]:
        """The scheduler's current information on each worker, by the worker's address.

        Raises:
            UsageError: the scheduler was lost.
        """
        try:
            return dict(self.client.scheduler_info(n_workers=-1)["workers"])
        except (OSError, TimeoutError, KeyError) as error:  # a lost scheduler reports nothing
            raise _scheduler_lost(error) from error

    @property
    def count(self) -> int:
        """The number of tasks that the cluster can currently run at once."""
        return sum(int(worker["nthreads"]) for worker in self.workers().values()) or 1

    def submit(self, task: Task, *, first: bool = False) -> None:
        """Queue a task; allowed while events are read, and sent before the next one.

        The cluster decides which of its tasks is ``first``.
        """
        self._queue.append(task)

    def send(self, task: Task, **where: Any) -> Any:
        """Submit a task and return its future; ``where`` is as of Dask's ``Client.submit``."""
        variables = {k: v for k, v in os.environ.items() if k.startswith("ATTNBENCH_")}
        pickled = pickle.dumps(task.at(os.getcwd(), variables))
        key = f"attnbench-{self._run}-{next(self._numbers)}"
        future = self.client.submit(run_task, pickled, self._preload, key=key, pure=False, **where)
        self._futures[key] = future
        return future

    def events(self) -> Iterator[Event]:
        """Yield the events of each task as the tasks end, until none is left."""
        while self._queue or self._tasks:
            while self._queue:
                task = self._queue.pop(0)
                future = self.send(task)
                self._tasks[future.key] = task
                self._completions.add(future)
            future = next(self._completions)
            yield from self.ended(self._tasks.pop(future.key), future)

    def ended(self, task: Task, future: Any) -> Iterator[Event]:
        """Yield the events of a task that has ended.

        Raises:
            UsageError: the scheduler was lost.
        """
        from distributed import CancelledError, KilledWorker

        self._futures.pop(future.key, None)
        try:
            yield from pickle.loads(future.result())  # noqa: S301 -- of our own worker
        except KilledWorker as error:
            reason = f"the workers that ran it were lost, {error.allowed_failures + 1} in a row"
            yield Event(task, "crashed", reason=reason)
        except (CancelledError, OSError) as error:
            raise _scheduler_lost(error) from error
        except Exception as error:
            yield Event(task, "raised", reason=f"{type(error).__name__}: {error}")

    def cancel(self) -> None:
        """Cancel the tasks that have not ended."""
        self._queue.clear()
        self._tasks.clear()
        with contextlib.suppress(Exception):
            self.client.cancel(list(self._futures.values()), force=True)
        self._futures.clear()
        self._completions.clear()

    def __enter__(self) -> ClusterWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self.client.close(timeout=5)


def _whole(worker: Mapping[str, Any]) -> dict[str, int]:
    """The resources of which a worker has at least one, as one each."""
    return {name: 1 for name, number in worker["resources"].items() if number >= 1}


def _scheduler_lost(error: BaseException) -> UsageError:
    return UsageError(
        f"the scheduler was lost ({type(error).__name__}); what was recorded stays, and the same "
        "--run NAME goes on with the rest."
    )


def _client_of(where: str) -> Any:
    from distributed import Client

    address = where if "://" in where else _read_address(Path(where))
    host = address.partition("://")[2].rpartition(":")[0].strip("[]")
    with contextlib.suppress(ValueError):
        host = "" if ipaddress.ip_address(host).is_loopback else host
    if not address.startswith("tls://") and host not in ("", "localhost"):
        warnings.warn(
            f"{address} is not encrypted: whoever reaches it can run code there. Use tls:// with "
            "Dask's own configuration, distributed.comm.tls.",
            UnencryptedWarning,
            stacklevel=3,
        )
    try:
        return Client(address, timeout=_ANSWER_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        message = f"no scheduler answers at {where} within 10 s ({message_of(error)})."
        raise UsageError(message) from None


def _read_address(file: Path) -> str:
    """The address in the file of a Dask scheduler."""
    try:
        return str(json.loads(file.read_text("utf-8"))["address"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"--cluster {file} is none of tcp://HOST:PORT, tls://HOST:PORT, and a file of "
            "`dask scheduler --scheduler-file FILE`. attnbench starts no workers itself: start "
            "them with `dask worker`, or on Slurm with dask_jobqueue.SLURMCluster."
        ) from None


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
        self._needed = {MEASURING, "GPU"} if accelerator else {MEASURING}
        self._facts: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()
        found: dict[str, Machine] = {}
        for address, (key, name) in sorted(self.workers().items()):
            resources = _whole(cluster.workers().get(address, {"resources": {}}))
            if key not in found or len(resources) > len(found[key].resources):
                found[key] = Machine(self, key, name, resources, address)
        if not found:
            raise UsageError(
                "the cluster's workers went while they were asked where they are: no worker that "
                "measures is left."
            )
        names = Counter(machine.name for machine in found.values())
        for machine in found.values():
            if names[machine.name] > 1:
                host = machine.address.partition("://")[2].rpartition(":")[0]
                machine.name = f"{machine.name}-{host}"
        self.all = sorted(found.values(), key=lambda machine: (machine.name, machine.address))

    def workers(self) -> dict[str, tuple[str, str]]:
        """Identifier and name of the machine of each present worker for measuring, by address."""
        with self._lock:
            present = [a for a, w in self.cluster.workers().items() if self._needed <= {*_whole(w)}]
            new = [address for address in present if address not in self._facts]
            if new:  # one may be lost after it was listed; it is then left out
                options = {"workers": new, "on_error": "ignore"}
                self._facts |= self.cluster.client.run(machine_facts, **options)
            return {address: self._facts[address] for address in present if address in self._facts}


class Machine:
    """One machine of a cluster; all resources of its worker are taken while it measures."""

    def __init__(
        self, machines: Machines, key: str, name: str, resources: Mapping[str, int], address: str
    ) -> None:
        self.name, self.address = name, address
        self.resources = {n: resources[n] for n in (MEASURING, "GPU") if n in resources}
        self._machines, self._key = machines, key

    @property
    def has_accelerator(self) -> bool:
        """Whether its worker has the resource ``GPU``."""
        return "GPU" in self.resources

    def call(self, task: Task) -> Any:
        """Run one task and return its value; see :func:`attnbench.processes.pool.call`.

        Raises:
            AttnbenchError: the function raised it, and its message begins with the machine's name,
                or (``PluginError``) the process ended.
        """
        value = None
        for event in self.events(task):
            if event.kind == "value":
                value = event.value
            elif event.kind != "done":
                kind = PluginError if event.error is None else type(event.error)
                raise kind(f"on {self.name}: {event.reason}")
        return value

    def events(self, task: Task) -> Iterator[Event]:
        """Run a task and yield its events; if a worker is lost, use another one of this machine.

        Raises:
            MachineLostError: no worker of this machine is left.
            UsageError: the scheduler was lost.
        """
        cluster = self._machines.cluster
        for _ in range(_LOSSES):
            address = self._present_address()
            future = cluster.send(task, resources=self.resources, workers=[address])
            while not future.done() and address in cluster.workers():
                with contextlib.suppress(Exception):  # reported when the task has ended
                    future.result(timeout=_LOOK_S)
            if future.done():
                yield from cluster.ended(task, future)
                return
            future.cancel(force=True)
        reason = f"the workers that ran it on {self.name} were lost, {_LOSSES} in a row"
        yield Event(task, "crashed", reason=reason)

    def _present_address(self) -> str:
        """The address of a worker of this machine with the resources of the first one."""
        deadline = time.monotonic() + _RETURN_S
        while time.monotonic() < deadline:
            infos = self._machines.cluster.workers()
            for address, (key, _) in self._machines.workers().items():
                resources = _whole(infos[address]) if address in infos else {}
                if key == self._key and self.resources.items() <= resources.items():
                    return address
            time.sleep(_LOOK_S)
        raise MachineLostError(
            f"the machine {self.name} was lost: it has no worker that measures, and none came back "
            f"within {_RETURN_S:g} s. What was recorded stays, and --run NAME goes on."
        )
