"""How busy the machine is with other work, and its free memory. This does not import torch."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil


class Load:
    """Load by other processes since this object was created.

    Args:
        whole: whether processes started by this one count as its own.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._start = time.perf_counter()
        self._whole = whole
        self._times = _cpu_times_s(whole)

    def read(self) -> dict[str, float]:
        """Read the number of cores kept busy by others, the number of cores, and the stolen share.

        The last is the share of time that a hypervisor gave to other machines.
        """
        elapsed = max(time.perf_counter() - self._start, 1e-3)
        used, own, stolen = (
            now - then for now, then in zip(_cpu_times_s(self._whole), self._times, strict=True)
        )
        cores = psutil.cpu_count() or 1
        return {
            "others_cores": min(max(0.0, (used - own) / elapsed), float(cores)),
            "stolen_share": max(0.0, stolen / elapsed / cores),
            "cores": float(cores),
        }


def _cpu_times_s(whole: bool) -> tuple[float, float, float]:
    """CPU time in seconds: of all processes, of this one, and stolen by a hypervisor."""
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")  # "user" includes guests
    used = sum(getattr(times, name, 0.0) for name in names)
    return used, own_s(whole), stolen_s()


def own_s(whole: bool) -> float:
    """CPU time of this process, and of those that it started if the whole counts, in seconds."""
    if not whole:
        return time.process_time()
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


def stolen_s() -> float:
    """CPU time stolen by a hypervisor so far, in seconds; 0 if the system does not report it."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def available_bytes() -> int:
    """Bytes that this process can still allocate, limited by the machine or its control group."""
    available = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        available = min(available, limit - int((group / "memory.current").read_text()))
    return available
