"""Clocks: how long consecutive calls take, without anything waiting inside the interval."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from attnbench.benchmark.measuring.contract import Contract

__all__ = ["Sampled", "cache_bytes", "first_call", "relative_error", "sample"]

Call = Callable[[], object]
_MOST_CALLS = 1_000_000
_EVENTS_AT_ONCE = 16


@dataclass(frozen=True)
class Sampled:
    """What sampling gave.

    Args:
        samples_s: mean time of one call, for each sample.
        calls: consecutive calls of a sample.
    """

    samples_s: tuple[float, ...]
    calls: int

    @property
    def quartiles_s(self) -> tuple[float, float, float]:
        """First quartile, median and third quartile."""
        if len(self.samples_s) == 1:
            return (self.samples_s[0],) * 3
        low, _, high = statistics.quantiles(self.samples_s, n=4, method="inclusive")
        return low, statistics.median(self.samples_s), high

    @property
    def relative_error(self) -> float:
        """Standard error of the median over the median."""
        return relative_error(self.samples_s)


def relative_error(samples: tuple[float, ...] | list[float]) -> float:
    """Standard error of the median over the median, the spread taken from the quartiles."""
    if len(samples) < 3:
        return math.inf
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    spread = (high - low) / 1.349  # of a normal distribution
    return 1.2533 * spread / math.sqrt(len(samples)) / middle if middle > 0 else math.inf


def cache_bytes() -> int:
    """Size of the largest cache of the processor; 32 MiB where the system does not say."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 2**10, "M": 2**20}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM")) * unit)
    return max(sizes, default=32 * 2**20)


def first_call(call: Call, device: torch.device) -> float:
    """Seconds of a first call, until its result is there: with whatever it compiles."""
    started = time.perf_counter()
    result = call()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    elapsed = time.perf_counter() - started
    del result
    return elapsed


@contextmanager
def _no_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_SETTLED_BYTES = 31 * 2**20
"""The largest block that glibc adapts to has 32 MiB, with what it adds to one."""


def _settle() -> None:
    """Bring the C library's allocator into the state that it comes to in a longer run.

    glibc takes a block above a threshold from the system at each call and hands it back, and to
    touch new memory may take longer than the call does. The threshold rises to the largest such
    block that was freed. Until then it depends on what else ran in a process how long a call takes:
    up to six times as long as in the next one was seen.
    """
    torch.empty(_SETTLED_BYTES, dtype=torch.uint8)


def sample(call: Call, device: torch.device, contract: Contract) -> Sampled:
    """Take samples of a call as a contract says; the call has been made before."""
    if device.type == "cpu":
        _settle()
    measure = _on_cpu if device.type == "cpu" else _on_accelerator
    flush = _flusher(device) if contract.cache == "cold" else None
    with _no_collection():
        calls = 1 if flush else _calls(call, device, contract.sample_s)
        samples: list[float] = []
        started = time.perf_counter()
        while not _enough(samples, time.perf_counter() - started, contract):
            samples += measure(call, calls, device, flush)
    return Sampled(tuple(samples), calls)


def _enough(samples: list[float], elapsed: float, contract: Contract) -> bool:
    if elapsed >= contract.cap_s:
        return len(samples) >= 3
    return (
        len(samples) >= contract.min_samples
        and elapsed >= contract.min_s
        and relative_error(samples) <= contract.target
    )


def _calls(call: Call, device: torch.device, sample_s: float) -> int:
    """How many calls fill a sample; more and more until they do, which warms everything up, too.

    The fastest of three tries counts: one that was interrupted would make the samples too short.
    """
    measure = _on_cpu if device.type == "cpu" else _on_accelerator
    calls = 1
    while calls < _MOST_CALLS:
        each = measure(call, calls, device, None)[-1]
        if each * calls < 20 * sample_s:
            each = min(each, *(measure(call, calls, device, None)[-1] for _ in range(2)))
        if each * calls >= sample_s:
            break
        calls = max(2 * calls, min(_MOST_CALLS, int(1.1 * sample_s / max(each, 1e-9)) + 1))
    return calls


def _on_cpu(call: Call, calls: int, device: torch.device, flush: Call | None) -> list[float]:
    if flush:
        flush()
    repeat = range(calls)
    started = time.perf_counter_ns()
    for _ in repeat:
        call()
    return [(time.perf_counter_ns() - started) / calls / 1e9]


def _on_accelerator(
    call: Call, calls: int, device: torch.device, flush: Call | None
) -> list[float]:
    """Several samples: all are queued first, and waited for after the last one."""
    repeat, pairs = range(calls), []
    for _ in range(_EVENTS_AT_ONCE):
        if flush:
            flush()
        start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
        start.record()
        for _ in repeat:
            call()
        end.record()
        pairs.append((start, end))
    torch.accelerator.synchronize(device)
    return [start.elapsed_time(end) / 1e3 / calls for start, end in pairs]


def _flusher(device: torch.device) -> Call:
    """A function that writes a buffer of four times the last cache (256 MiB on an accelerator)."""
    size = 4 * cache_bytes() if device.type == "cpu" else 256 * 2**20
    buffer: Tensor = torch.empty(size // 4, dtype=torch.int32, device=device)
    return buffer.zero_
