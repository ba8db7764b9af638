"""Tasks on a cluster, with the same interface as child processes on this machine.

Dask schedules the tasks: :class:`ClusterWorkers` submits each under a unique name. If a worker is
lost, its tasks run again elsewhere, as often as the scheduler allows (three times by default).
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import json
import logging
import os
import pickle
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.errors import UsageError, message_of
from attnbench.processes.pool import Event, Task
from attnbench.processes.remote import run_task
from attnbench.registry.versions import installed_versions

_ANSWER_S = 10.0
_BATCH_WAIT_S = 0.02
"""Wait for more answers after the first, since fetching them together costs less."""


class UnencryptedWarning(UserWarning):
    """Tasks cross a network unencrypted."""


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
        distributed = _distributed()
        # it logs a lost connection with a traceback; the user gets one line instead
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
        self._stack = contextlib.ExitStack()
        self._preload, self._resources = tuple(preload), dict(resources or {})
        self._run = uuid.uuid4().hex[:12]
        self._queue: list[Task] = []
        self._tasks: dict[str, Task] = {}
        self._numbers = itertools.count()
        try:
            self.client = self._stack.enter_context(_client_of(where))
            self._check_workers(where)
        except BaseException:
            self._stack.close()
            raise
        self._completions = distributed.as_completed(loop=self.client.loop)

    def _check_workers(self, where: str) -> None:
        """Check before the first task that workers have the resources and the same versions."""
        try:
            self.client.wait_for_workers(1, timeout=_ANSWER_S)
        except TimeoutError:
            raise UsageError(
                f"the cluster at {where} has no workers; start one with "
                f"`dask worker {self.client.scheduler.address}`."
            ) from None
        workers = self.workers()
        if self._resources and not any(
            all(worker["resources"].get(name, 0) >= n for name, n in self._resources.items())
            for worker in workers.values()
        ):
            text = ", ".join(f"{name}={n:g}" for name, n in self._resources.items())
            raise UsageError(
                f"no worker of the cluster at {where} has the resource {text}; start one with "
                f'`dask worker --resources "{text}"`.'
            )
        try:
            remote_versions = self.client.run(installed_versions)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"a worker of the cluster at {where} cannot import {error.name}; install attnbench "
                "there, in the version that is here."
            ) from None
        local_versions = installed_versions()
        differences = []
        for address, versions in remote_versions.items():
            for name in sorted({*local_versions, *versions}):
                local, remote = local_versions.get(name, "absent"), versions.get(name, "absent")
                if local != remote:
                    differences.append(f"  {name}: {local} here, {remote} on {address}")
        if differences:
            raise UsageError(
                f"the cluster at {where} has other versions, so that its outcomes could be "
                "others:\n" + "\n".join(differences) + "\nInstall the same on both."
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

    def submit(self, task: Task) -> None:
        """Queue a task; allowed while events are read, and sent before the next one."""
        self._queue.append(task)

    def send(
        self,
        task: Task,
        resources: Mapping[str, float] | None = None,
        workers: Sequence[str] | None = None,
    ) -> Any:
        """Submit a task and return its future.

        Args:
            task: task to run once.
            resources: Dask resources to reserve for it.
            workers: addresses of the workers that may run it; by default all.
        """
        return self.client.submit(
            run_task,
            pickle.dumps(task),
            self._setting(),
            key=self._key(),
            pure=False,
            resources=resources or None,
            workers=workers,
        )

    def _key(self) -> str:
        return f"attnbench-{self._run}-{next(self._numbers)}"

    def _setting(self) -> str:
        """The setting that all tasks share, as JSON."""
        variables = {k: v for k, v in os.environ.items() if k.startswith("ATTNBENCH_")}
        setting = {"preload": self._preload, "variables": variables, "folder": os.getcwd()}
        return json.dumps(setting, sort_keys=True)

    def events(self) -> Iterator[Event]:
        """Yield the events of each task as the tasks end, until none is left."""
        while self._queue or not self._completions.is_empty():
            self._send_queue()
            batch = self._completions.next_batch()
            time.sleep(_BATCH_WAIT_S)
            batch += self._completions.next_batch(block=False)
            answers = self._gather(batch)
            for future in batch:
                task = self._tasks.pop(future.key)
                if future.key in answers:
                    yield from pickle.loads(answers[future.key])  # noqa: S301 -- of our own worker
                else:
                    yield from self.ended(task, future)
                future.release()

    def _send_queue(self) -> None:
        """Send the queued tasks together, since each message has its own cost."""
        if not self._queue:
            return
        tasks = {self._key(): task for task in self._queue}
        pickled = [pickle.dumps(task) for task in self._queue]
        settings = [self._setting()] * len(pickled)
        self._queue.clear()
        self._tasks |= tasks
        futures = self.client.map(run_task, pickled, settings, key=list(tasks), pure=False)
        self._completions.update(futures)

    def _gather(self, batch: Sequence[Any]) -> dict[str, bytes]:
        """Fetch the answers of the finished tasks together; returns them by key."""
        futures = [future for future in batch if future.status == "finished"]
        try:
            answers = self.client.gather(futures)
        except Exception:  # one was lost since; ended() asks each separately
            return {}
        return {future.key: answer for future, answer in zip(futures, answers, strict=True)}

    def ended(self, task: Task, future: Any) -> Iterator[Event]:
        """Yield the events of a task that has ended."""
        try:
            answer = future.result()
        except Exception as error:
            yield self._loss_event(task, error)
        else:
            yield from pickle.loads(answer)  # noqa: S301 -- of our own worker

    def _loss_event(self, task: Task, error: Exception) -> Event:
        """The event of a task that no worker could finish."""
        from distributed import CancelledError, KilledWorker

        if isinstance(error, KilledWorker):
            reason = f"the workers that ran it were lost, {error.allowed_failures + 1} in a row"
            return Event(task, "crashed", reason=reason)
        if isinstance(error, CancelledError | OSError):
            raise _scheduler_lost(error) from error
        return Event(task, "raised", reason=f"{type(error).__name__}: {error}")

    def cancel(self) -> None:
        """Cancel the tasks that have not ended."""
        self._queue.clear()
        with contextlib.suppress(Exception):
            self.client.cancel(list(self._completions.futures), force=True)
        self._completions.clear()
        self._tasks.clear()

    def __enter__(self) -> ClusterWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self._stack.close()


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise UsageError(
            "--cluster needs Dask, which is not installed: pip install 'attnbench[cluster]'."
        ) from None
    return distributed


def _scheduler_lost(error: Exception) -> UsageError:
    return UsageError(
        f"the scheduler was lost ({type(error).__name__}); what was recorded stays, and --resume "
        "goes on with the rest."
    )


@contextlib.contextmanager
def _client_of(where: str) -> Iterator[Any]:
    from distributed import Client

    address = where if "://" in where else _read_address(Path(where))
    if not address.startswith("tls://") and not _is_local(address):
        warnings.warn(
            f"{address} is not encrypted: whoever reaches it can run code there. Use tls:// with "
            "Dask's own configuration, distributed.comm.tls.",
            UnencryptedWarning,
            stacklevel=4,
        )
    try:
        client = Client(address, timeout=_ANSWER_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        message = f"no scheduler answers at {where} within 10 s ({message_of(error)})."
        raise UsageError(message) from None
    try:
        yield client
    finally:
        client.close(timeout=5)


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


def _is_local(address: str) -> bool:
    host = address.partition("://")[2].rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("localhost", "")
