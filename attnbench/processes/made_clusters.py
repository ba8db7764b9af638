"""Dask clusters that are created for one run: workers on this machine, or Slurm jobs."""

from __future__ import annotations

import contextlib
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attnbench.errors import UsageError

_FORMS = "tcp://HOST:PORT, tls://HOST:PORT, local:N, slurm, or a file FILE.toml"


@contextlib.contextmanager
def made_cluster(where: str) -> Iterator[Any]:
    """Create a Dask cluster for this run; ``None`` if ``where`` is a running scheduler."""
    if "://" in where:
        yield None
        return
    kind, options = _kind_and_options(where)
    with contextlib.ExitStack() as stack, _refused(where):
        if kind == "local":
            from distributed import LocalCluster

            defaults = {"threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
            own = {"memory_limit": 0, "resources": {"machine": 1}}
            made = LocalCluster(**{**defaults, **own, **options})
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
    """A cluster whose workers are Slurm jobs, none of them submitted yet."""
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise UsageError(
            "--cluster slurm needs dask-jobqueue: pip install 'attnbench[cluster]'."
        ) from None
    defaults: dict[str, Any] = {"cores": 1, "processes": 1, "memory": "4GiB"}
    defaults["worker_extra_args"] = ["--resources", "machine=1"]
    defaults["scheduler_options"] = {"dashboard_address": ":0"}
    return SLURMCluster(**{**defaults, **{k: v for k, v in options.items() if k != "jobs"}})


def _try_submitting(script: str) -> None:
    """Ask Slurm whether it accepts a job; Dask would only log a refusal and wait forever."""
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
    """Convert Dask's errors about the entries of a file to one line."""
    try:
        yield
    except UsageError:
        raise
    except Exception as error:  # entries are parsed by various code, which may raise anything
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


def _first_cause(error: BaseException) -> str:
    """The root cause in one line; Dask wraps the error with which a worker failed to start."""
    while error.__cause__ is not None and str(error.__cause__).strip("'") not in str(error):
        error = error.__cause__
    said = str(error).splitlines()
    return said[0].rstrip(".") if said else type(error).__name__
