"""Tasks on a Dask cluster, with the face of the pool of this machine.

A worker runs each task in a child of its own, with the same limits as on this machine; if a worker
is lost, its tasks run again elsewhere.
"""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import pickle
import platform
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnbench.errors import UsageError, message_of
from attnbench.processes.pool import Event, Task, Workers, warm_up
from attnbench.registry.discovery import discover, installed_version

_ANSWER_S = 10.0


def installed_versions() -> dict[str, str]:
    """The versions on which machines must agree: Python, torch, attnbench and all plugins."""
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("attnbench", "torch"):
        versions[name] = (installed_version(name) or "absent").partition("+")[0]
    for plugin in discover():
        if plugin.distribution != "attnbench":
            versions[f"plugin {plugin.name!r} of {plugin.distribution}"] = plugin.version
    return versions


def run_task(pickled: bytes, preload: Sequence[str]) -> bytes:
    """Run a task on a worker; returns its events, of which the last says how it ended.

    Both are pickled here, since Dask would search containers for its keys and measure them.
    """
    from distributed import get_worker

    # a worker under a nanny is a daemon, which multiprocessing would allow no children
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    warm_up(*preload)
    worker = get_worker()
    own = worker.state.tasks.get(worker.get_current_task())
    with Workers() as workers:
        # Dask does not stop a task that is cancelled
        workers.stopped = lambda: own is not None and own.state == "cancelled"
        workers.submit(pickle.loads(pickled))  # noqa: S301 -- of the client, which may run code here
        return pickle.dumps([*workers.events()])


class ClusterWorkers:
    """Workers of a cluster that run submitted tasks.

    Args:
        where: address of a scheduler, or the file that ``--scheduler-file`` of Dask writes.
        preload: modules to import in the workers' children.

    Raises:
        UsageError: Dask is not installed, nothing answers within 10 s, there are no workers, or a
            worker has other versions.
    """

    def __init__(self, where: str, *, preload: Sequence[str] = ()) -> None:
        try:
            import distributed
        except ImportError:
            raise UsageError(
                "--cluster needs Dask, which is not installed: pip install 'attnbench[cluster]'."
            ) from None
        # it logs a lost connection with a traceback; the user gets one line instead
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
        self._preload = tuple(preload)
        self._queue: list[Task] = []
        self._running: dict[str, tuple[Task, Any]] = {}  # with their futures, by the key of these
        address = where if "://" in where else _read_address(Path(where))
        try:
            self.client = distributed.Client(address, timeout=_ANSWER_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            message = f"no scheduler answers at {where} within 10 s ({message_of(error)})."
            raise UsageError(message) from None
        try:
            self._check_workers(where)
        except BaseException:
            self.client.close(timeout=5)
            raise
        self._completions = distributed.as_completed(loop=self.client.loop)

    def _check_workers(self, where: str) -> None:
        """Check before the first task that there are workers, which have the same versions."""
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

    @property
    def count(self) -> int:
        """The number of tasks that the cluster can currently run at once.

        Raises:
            UsageError: the scheduler was lost.
        """
        try:
            workers = self.client.scheduler_info(n_workers=-1)["workers"].values()
        except (OSError, TimeoutError, KeyError) as error:  # a lost scheduler reports nothing
            raise _scheduler_lost(error) from error
        return sum(int(worker["nthreads"]) for worker in workers) or 1

    def submit(self, task: Task, *, first: bool = False) -> None:
        """Queue a task; allowed while events are read, and sent before the next one.

        The cluster decides which of its tasks is ``first``.
        """
        self._queue.append(task)

    def events(self) -> Iterator[Event]:
        """Yield the events of each task as the tasks end, until none is left.

        Raises:
            UsageError: the scheduler was lost.
        """
        while self._queue or self._running:
            while self._queue:
                task = self._queue.pop(0)
                pickled = pickle.dumps(replace(task, folder=os.getcwd()).with_variables())
                key = f"attnbench-{uuid.uuid4().hex}"
                future = self.client.submit(run_task, pickled, self._preload, key=key, pure=False)
                self._running[key] = task, future
                self._completions.add(future)
            task, future = self._running.pop(next(self._completions).key)
            yield from _ended(task, future)

    def __enter__(self) -> ClusterWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            self.client.cancel([future for _, future in self._running.values()], force=True)
        self.client.close(timeout=5)


def _ended(task: Task, future: Any) -> Iterator[Event]:
    """Yield the events of a task that has ended."""
    from distributed import CancelledError, KilledWorker

    try:
        yield from pickle.loads(future.result())  # noqa: S301 -- of our own worker
    except KilledWorker as error:
        reason = f"the workers that ran it were lost, {error.allowed_failures + 1} in a row"
        yield Event(task, "crashed", reason=reason)
    except (CancelledError, OSError) as error:
        raise _scheduler_lost(error) from error
    except Exception as error:
        yield Event(task, "raised", reason=f"{type(error).__name__}: {error}")


def _scheduler_lost(error: BaseException) -> UsageError:
    return UsageError(f"the scheduler was lost ({type(error).__name__}).")


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
