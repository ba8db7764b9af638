"""Memory: the peak during a call, and a limit that makes too much an error.

The peak of tensors is exact. What a call allocates otherwise (a loop in C++, numpy) no profiler of
torch sees; it is taken from the growth of the process where that is clearly larger.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import torch

from attnbench.benchmark.machine.memory_limits import available_bytes

__all__ = ["is_out_of_memory", "limited", "peak_bytes"]

# the profiler's library prints a line a profile on standard error unless it is told not to
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

_RESERVE = 256 * 2**20
_SURE = 1.2
_NOISE = 8 * 2**20
"""The resident size is known to some pages, which may be huge ones of 2 MiB."""


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Most bytes alive at once during a call, beyond those alive before it.

    The call has been made before.

    On a CPU from the profiler's memory events, which see each tensor of each operator, of compiled
    code too; where the process grew by clearly more, that is taken, to the page. On an accelerator
    from its allocator's statistics. What the call gives back counts.
    """
    if device.type == "cpu":
        tensors = _peak_on_cpu(call)
        resident = min(_resident_peak(call) for _ in range(2))
        return resident if resident > max(_SURE * tensors, tensors + _NOISE) else tensors
    torch.accelerator.synchronize(device)
    torch.accelerator.reset_peak_memory_stats(device)
    before = _requested(device, "current")
    result = call()
    torch.accelerator.synchronize(device)
    peak = _requested(device, "peak") - before
    del result
    return peak


def _requested(device: torch.device, what: str) -> int:
    """Bytes that tensors asked for, before the allocator rounds them up; rounded, if not told."""
    stats = torch.accelerator.memory_stats(device)
    name = f"requested_bytes.all.{what}"
    return int(stats.get(name, stats.get(f"allocated_bytes.all.{what}", 0)))


def _peak_on_cpu(call: Callable[[], object]) -> int:
    # the inner profiler: the one in torch.profiler imports 800 modules, which takes 0.9 s
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        result = call()
    del result
    assert profile.kineto_results is not None
    events = [e for e in profile.kineto_results.events() if e.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    return peak


def _resident_peak(call: Callable[[], object]) -> int:
    """By how much the resident size grows at most during a call; 0 where Linux does not say.

    What was freed before goes back to the system first, so that using it again is seen.
    """
    status, refs = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    try:
        ctypes.CDLL(None).malloc_trim(0)
        refs.write_text("5")  # the peak so far becomes the present size
        before = _kib(status, "VmRSS")
        result = call()
        peak = _kib(status, "VmHWM")
        del result
    except (OSError, AttributeError):
        return 0
    return max(0, peak - before) * 2**10


def _kib(status: Path, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", status.read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


@contextlib.contextmanager
def limited(device: torch.device) -> Iterator[None]:
    """Let an allocation that does not fit fail, where it would else end this or another process.

    A CPU gives out memory that it does not have, and ends some process when it is used. Where the
    system has no such limit nothing is changed; an accelerator needs none.
    """
    if device.type != "cpu":
        yield
        return
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        used = int(psutil.Process().memory_info().vms)
        limit = used + max(available_bytes() - _RESERVE, _RESERVE)
        if soft != resource.RLIM_INFINITY:
            limit = min(limit, soft)
        resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    except (ImportError, OSError, ValueError):
        yield
        return
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory did not suffice."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "out of memory" in text.lower()
    )
