"""This machine: how busy it is with other work, its free memory, and its description in records.

This module does not import torch.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil

from attnbench.errors import UsageError
from attnbench.processes.git import git
from attnbench.registry.discovery import installed_version


class Load:
    """Load by other processes, not started by this one, since this object was created."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._used, self._own = used_s(), own_s()

    def read(self) -> dict[str, float]:
        """Read the number of cores kept busy by others, and the number of cores."""
        elapsed = max(time.perf_counter() - self._start, 1e-3)
        others = (used_s() - self._used) - (own_s() - self._own)
        cores = float(psutil.cpu_count() or 1)
        return {"others_cores": min(max(0.0, others / elapsed), cores), "cores": cores}


def used_s() -> float:
    """CPU time of all processes, in seconds."""
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")  # "user" includes guests
    return sum(getattr(times, name, 0.0) for name in names)


def own_s() -> float:
    """CPU time of this process, and of those that it started, in seconds."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
            total += getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return total


def mean_load(loads: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The average of what :meth:`Load.read` gave at several times."""
    loads = list(loads)
    names = dict.fromkeys(name for load in loads for name in load)
    return {n: statistics.fmean(load[n] for load in loads if n in load) for n in names}


def busy_cores(load: Mapping[str, float]) -> str:
    """How many cores other processes kept busy, in words."""
    return f"{load.get('others_cores', 0.0):.1f} of {load.get('cores', 0.0):.0f} cores busy"


def available_bytes() -> int:
    """Bytes that this process can still allocate, limited by the machine or its control group."""
    available = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        available = min(available, limit - int((group / "memory.current").read_text()))
    return available


def here(run: str = "", *, command: str = "") -> dict[str, Any]:
    """The fields that all records of a run share, of this process and its working directory."""
    machine = {
        "node": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor_name(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
    }
    versions = {name: installed_version(name) or "unknown" for name in ("torch", "attnbench")}
    return {
        "run": run,
        "commit": _commit(),
        "command": command,
        "machine": machine,
        "versions": {"python": platform.python_version(), **versions},
    }


@functools.cache
def processor_name() -> str:
    """The name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str:
    """The commit of the working directory, with ``+dirty`` if files differ; ``""`` without git."""
    try:
        commit = git(Path.cwd(), "rev-parse", "HEAD")
        return commit + "+dirty" * bool(git(Path.cwd(), "status", "--porcelain", "-uno"))
    except UsageError:
        return ""
