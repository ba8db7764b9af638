"""How busy the machine is with other work. Imports no torch."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import psutil

__all__ = ["Load", "stolen_ticks"]

_STAT = Path("/proc/stat")


class Load:
    """What others did on the machine since this was made.

    Args:
        whole: whether the processes that this one started count as its own.
    """

    def __init__(self, *, whole: bool = False) -> None:
        self._since = time.perf_counter()
        self._whole = whole
        self._used = _used_s(whole)

    def read(self) -> dict[str, float]:
        """How many cores others kept busy, how many there are, and the share that was stolen."""
        elapsed = max(time.perf_counter() - self._since, 1e-3)
        used, own, stolen = (
            now - then for now, then in zip(_used_s(self._whole), self._used, strict=True)
        )
        cores = psutil.cpu_count() or 1
        return {
            "others_cores": min(max(0.0, (used - own) / elapsed), float(cores)),
            "stolen_share": max(0.0, stolen / elapsed / cores),
            "cores": float(cores),
        }


def _used_s(whole: bool) -> tuple[float, float, float]:
    """Seconds of processor time: used by all processes, used by this one, and stolen."""
    times = psutil.cpu_times()
    names = ("user", "nice", "system", "irq", "softirq", "steal")  # "user" has the guests'
    used = sum(getattr(times, name, 0.0) for name in names)
    return used, _own_s(whole), float(getattr(times, "steal", 0.0))


def _own_s(whole: bool) -> float:
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


def stolen_ticks() -> int:
    """Ticks that a hypervisor took from this machine so far; 0 where the system does not say."""
    try:
        with _STAT.open("rb") as file:
            fields = file.readline().split()
    except OSError:
        return 0
    return int(fields[8]) if len(fields) > 8 else 0
