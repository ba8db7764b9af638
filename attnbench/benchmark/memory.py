"""Memory: the peak during a call.

The peak of tensors is exact. Torch's profiler does not see other allocations (a loop in C++,
numpy), so the growth of the process is used instead if it is clearly larger.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from pathlib import Path

import torch

from attnbench.benchmark.timing.rotation import FreshCall

# otherwise the profiler's library prints a line on standard error for each profile
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

_MIN_RATIO = 1.2
_NOISE = 8 * 2**20
"""Accuracy of the resident size: some pages, which may be huge pages of 2 MiB."""


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Most bytes alive at once during a call, beyond those alive before it.

    The result of the call counts. On a CPU the number comes from the profiler's memory events,
    which include all tensors, also those of compiled code; if the process grew by clearly more,
    its growth is returned. On an accelerator it comes from the allocator's statistics. The inputs
    are fresh, so that no result is remembered.
    """
    if isinstance(call, FreshCall):
        call.prepare(1)
    if device.type == "cpu":
        tensors = _peak_on_cpu(call)
        resident = min(_resident_peak(call) for _ in range(2))
        return resident if resident > max(_MIN_RATIO * tensors, tensors + _NOISE) else tensors
    torch.accelerator.synchronize(device)
    torch.accelerator.reset_peak_memory_stats(device)
    before = _tensor_bytes(device, "current")
    result = call()
    torch.accelerator.synchronize(device)
    peak = _tensor_bytes(device, "peak") - before
    del result
    return peak


def _tensor_bytes(device: torch.device, kind: str) -> int:
    """Bytes requested by tensors, or as rounded by the allocator if it reports only those."""
    stats = torch.accelerator.memory_stats(device)
    name = f"requested_bytes.all.{kind}"
    return int(stats.get(name, stats.get(f"allocated_bytes.all.{kind}", 0)))


def _peak_on_cpu(call: Callable[[], object]) -> int:
    # the inner profiler, since importing torch.profiler loads 800 modules and takes 0.9 s
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
    """The largest growth of the resident size during a call, in bytes; 0 except on Linux.

    Freed memory is first returned to the system, so that reusing it counts as growth.
    """
    status, refs = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    try:
        ctypes.CDLL(None).malloc_trim(0)
        refs.write_text("5")  # resets the recorded peak to the present size
        before = _kib(status, "VmRSS")
        result = call()
        peak = _kib(status, "VmHWM")
        del result
    except (OSError, AttributeError):
        return 0
    return max(0, peak - before) * 2**10


def _kib(status: Path, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", status.read_text(), re.MULTILINE)
    return int(match[1]) if match else 0


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "out of memory" in text.lower()
    )
