"""Running tasks on a cluster, behind the same face as child processes on this machine.

Dask schedules: :class:`ClusterWorkers` submits each task under a name of its own, and a worker that
is lost has its tasks run again elsewhere, as often as the scheduler allows (three times by
default). Only JSON crosses the network.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import subprocess
import tomllib
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnbench.errors import UsageError
from attnbench.processes.plain import event_of, plain_task
from attnbench.processes.pool import Event, Task
from attnbench.processes.remote import installed_versions, run_task

__all__ = ["ClusterWorkers", "UnencryptedWarning"]

_ANSWER_S = 10.0
_FORMS = "tcp://HOST:PORT, tls://HOST:PORT, local:N, slurm, or a file FILE.toml"


class UnencryptedWarning(UserWarning):
    """Tasks cross a network unencrypted."""


class ClusterWorkers:
    """Workers of a cluster that work off submitted tasks.

    Args:
        where: the address of a scheduler, ``local:N``, ``slurm``, or a TOML file whose ``kind`` is
            ``local`` or ``slurm`` and whose other entries are arguments of Dask's class.
        preload: modules that the workers' children find imported.
        resources: of Dask, what a worker has to have for a task.

    Raises:
        UsageError: Dask is absent, nothing answers within 10 s, there are no workers, no worker has
            the resources, or a worker has other versions.
    """

    def __init__(
        self,
        where: str,
        *,
        preload: Sequence[str] = (),
        resources: Mapping[str, float] | None = None,
    ) -> None:
        distributed = _distributed()
        self._stack = contextlib.ExitStack()
        self._preload, self._resources = tuple(preload), dict(resources or {})
        self._run = uuid.uuid4().hex[:12]
        self._tasks: dict[str, Task] = {}
        self._done: Any = None
        try:
            cluster = self._stack.enter_context(_cluster_of(where)) or where
            self._client = self._stack.enter_context(_client_of(cluster, where))
            self._refuse_others(where)
        except BaseException:
            self._stack.close()
            raise
        self._as_completed = distributed.as_completed

    def _refuse_others(self, where: str) -> None:
        """Hold the workers to having what is wanted, before the first task."""
        try:
            self._client.wait_for_workers(1, timeout=_waiting_s(where))
        except TimeoutError:
            raise UsageError(
                f"the cluster at {where} has no workers; start one with "
                f"`dask worker {self._client.scheduler.address}`."
            ) from None
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        if self._resources and not any(
            all(one["resources"].get(name, 0) >= n for name, n in self._resources.items())
            for one in workers.values()
        ):
            wanted = ", ".join(f"{name}={n:g}" for name, n in self._resources.items())
            raise UsageError(
                f"no worker of the cluster at {where} has the resource {wanted}; start one with "
                f'`dask worker --resources "{wanted}"`.'
            )
        try:
            theirs = self._client.run(installed_versions)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"a worker of the cluster at {where} cannot import {error.name}; install attnbench "
                "there, in the version that is here."
            ) from None
        ours = installed_versions()
        differences = []
        for address, versions in theirs.items():
            for name in sorted({*ours, *versions}):
                here, there = ours.get(name, "absent"), versions.get(name, "absent")
                if here != there:
                    differences.append(f"  {name}: {here} here, {there} on {address}")
        if differences:
            raise UsageError(
                f"the cluster at {where} has other versions, so that its outcomes could be "
                "others:\n" + "\n".join(differences) + "\nInstall the same on both."
            )

    @property
    def count(self) -> int:
        """How many tasks the cluster runs at once, as of now."""
        workers = self._client.scheduler_info(n_workers=-1)["workers"]
        return sum(int(one["nthreads"]) for one in workers.values()) or 1

    def submit(self, task: Task) -> None:
        """Hand a task to the scheduler; also while the events are being read."""
        key = f"attnbench-{self._run}-{len(self._tasks)}"
        self._tasks[key] = task
        variables = {k: v for k, v in os.environ.items() if k.startswith("ATTNBENCH_")}
        future = self._client.submit(
            run_task,
            plain_task(task),
            self._preload,
            variables,
            os.getcwd(),
            key=key,
            pure=False,
            resources=self._resources or None,
        )
        if self._done is None:
            self._done = self._as_completed([future], loop=self._client.loop)
        else:
            self._done.add(future)

    def events(self) -> Iterator[Event]:
        """What happened to each task, as the tasks end, until none is left."""
        if self._done is None:
            return
        for future in self._done:
            task = self._tasks[future.key]
            try:
                events = future.result()
            except Exception as error:
                yield self._lost(task, error)
                continue
            for data in events:
                yield event_of(task, data)
            future.release()

    def _lost(self, task: Task, error: Exception) -> Event:
        """What is said of a task that no worker could bring to an end."""
        from distributed import CancelledError, KilledWorker

        if isinstance(error, KilledWorker):
            reason = f"the workers that ran it were lost, {error.allowed_failures + 1} in a row"
            return Event(task, "crashed", reason=reason)
        if isinstance(error, CancelledError | OSError):
            raise UsageError(
                f"the scheduler was lost ({type(error).__name__}); what was recorded stays, and "
                "--resume goes on with the rest."
            ) from error
        return Event(task, "raised", reason=f"{type(error).__name__}: {error}")

    def __enter__(self) -> ClusterWorkers:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):
            if self._done is not None:
                self._client.cancel(list(self._done.futures), force=True)
        self._stack.close()


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise UsageError(
            "--cluster needs Dask, which is not installed: pip install 'attnbench[cluster]'."
        ) from None
    return distributed


def _waiting_s(where: str) -> float:
    """Workers of a queue may take minutes to start; those of an address should be there."""
    return _ANSWER_S if "://" in where else 600.0


def _first_cause(error: BaseException) -> str:
    """What was raised first, in one line: Dask wraps what a worker did not start for."""
    while error.__cause__ is not None and str(error.__cause__).strip("'") not in str(error):
        error = error.__cause__
    said = str(error).splitlines()
    return said[0].rstrip(".") if said else type(error).__name__


@contextlib.contextmanager
def _client_of(cluster: Any, where: str) -> Iterator[Any]:
    from distributed import Client

    if isinstance(cluster, str) and not cluster.startswith("tls://") and not _is_local(cluster):
        warnings.warn(
            f"{cluster} is not encrypted: whoever reaches it can run code there. Use tls:// with "
            "Dask's own configuration, distributed.comm.tls.",
            UnencryptedWarning,
            stacklevel=4,
        )
    try:
        client = Client(cluster, timeout=_ANSWER_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UsageError(f"no scheduler answers at {where} within 10 s ({said}).") from None
    try:
        yield client
    finally:
        client.close(timeout=5)


def _is_local(address: str) -> bool:
    host = address.partition("://")[2].rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("localhost", "")


@contextlib.contextmanager
def _cluster_of(where: str) -> Iterator[Any]:
    """A cluster of Dask's that was made for this run; ``None`` where a scheduler is there."""
    if "://" in where:
        yield None
        return
    kind, options = _kind_and_options(where)
    with contextlib.ExitStack() as stack, _refused(where):
        if kind == "local":
            from distributed import LocalCluster

            defaults = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
            made = LocalCluster(**{**defaults, "memory_limit": 0, **options})
            stack.callback(made.close, timeout=10)
        else:
            made = _queue(options)
            stack.callback(made.close, timeout=10)
            _try_submitting(made.job_script())
            made.scale(jobs=options.get("jobs", 1))
        held = stack.pop_all()
    with held:
        yield made


def _queue(options: Mapping[str, Any]) -> Any:
    """A cluster whose workers are jobs of Slurm; none is submitted yet."""
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise UsageError(
            "--cluster slurm needs dask-jobqueue: pip install 'attnbench[cluster]'."
        ) from None
    defaults: dict[str, Any] = {"cores": 1, "processes": 1, "memory": "4GiB"}
    defaults["scheduler_options"] = {"dashboard_address": ":0"}
    return SLURMCluster(**{**defaults, **{k: v for k, v in options.items() if k != "jobs"}})


def _try_submitting(script: str) -> None:
    """Ask Slurm whether it takes a job: Dask leaves a refusal in a log, and waits for ever."""
    told = subprocess.run(
        ["sbatch", "--test-only"],  # noqa: S607 -- the sbatch that the user would run
        input=script,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if told.returncode:
        raise OSError(told.stderr.strip().splitlines()[-1])


@contextlib.contextmanager
def _refused(where: str) -> Iterator[None]:
    """Tell what Dask refuses of a file's entries in one line."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # each entry goes to code of its own, which raises what it likes
        raise UsageError(f"--cluster {where}: {_first_cause(error)}.") from None


def _kind_and_options(where: str) -> tuple[str, dict[str, Any]]:
    if where == "slurm":
        return "slurm", {}
    if where.startswith("local:"):
        count = where.partition(":")[2]
        if not count.isdecimal() or not int(count):
            raise UsageError(f"--cluster {where}: write local:N, N workers on this machine.")
        return "local", {"n_workers": int(count)}
    if not where.endswith(".toml"):
        raise UsageError(f"--cluster {where!r} is none of {_FORMS}.")
    try:
        options = tomllib.loads(Path(where).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--cluster {where}: {error}.") from None
    kind = options.pop("kind", None)
    if kind not in ("local", "slurm"):
        raise UsageError(f"--cluster {where}: kind = {kind!r}, but it is 'local' or 'slurm'.")
    for entry in ("n_workers", "threads_per_worker", "jobs", "cores"):
        count = options.get(entry, 1)
        if not isinstance(count, int) or count < 1:
            raise UsageError(f"--cluster {where}: {entry} = {count!r}, but it is 1 or more.")
    return kind, options
