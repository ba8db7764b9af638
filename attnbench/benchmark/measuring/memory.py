"""Memory: the exact peak of tensors during a call, and a limit that makes too much an error."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import psutil
import torch

from attnbench.benchmark.measuring.memory_limits import available_bytes

__all__ = ["is_out_of_memory", "limited", "peak_bytes"]

# the profiler's library prints a line a profile on standard error unless it is told not to
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

_RESERVE = 256 * 2**20


def peak_bytes(call: Callable[[], object], device: torch.device) -> int:
    """Most bytes of tensors alive at once during a call, beyond those alive before it.

    On a CPU from the profiler's memory events, which see each tensor of each operator, of compiled
    code too; on an accelerator from its allocator's statistics. What the call gives back counts.
    """
    if device.type == "cpu":
        return _peak_on_cpu(call)
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
