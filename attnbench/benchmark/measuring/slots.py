"""Slots: some milliseconds of consecutive calls, timed as a whole.

A call that computes in one thread is timed by that thread's CPU time, which stands still while
another process has the core. A call that starts threads or waits is timed by the wall clock. On an
accelerator, device events around the calls, or around a replayed graph of them, give the time.
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from attnbench.benchmark.measuring.blocks import Block, Slot, run_blocks
from attnbench.benchmark.measuring.contract import (
    CPU_CLOCK,
    EVENT_CLOCK,
    GRAPH_CLOCK,
    WALL_CLOCK,
    Contract,
)
from attnbench.benchmark.measuring.graphs import CAPTURED, captured

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

__all__ = ["WARM_UP_S", "Timer", "cache_bytes", "first_call", "settled", "shaken", "shaken_blocks"]

Call = Callable[[], object]
_MOST_CALLS = 1_000_000
WARM_UP_S = 0.5
"""Seconds for which an accelerator is kept busy before the first slot."""
_OWN_THREADS = 1.1
"""If the process uses this many times the CPU time of the thread, the call starts threads."""
_WAITING = 0.5
"""A call with more voluntary context switches than this waits for something."""


def cache_bytes() -> int:
    """Bytes of the processor's largest cache; 32 MiB if the system does not report it."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        unit = {"K": 2**10, "M": 2**20}.get(text[-1:], 1)
        sizes.append(int(text.rstrip("KM")) * unit)
    return max(sizes, default=32 * 2**20)


def first_call(call: Call, device: torch.device) -> float:
    """Time the first call until its result is available, including any compilation, in seconds."""
    started = time.perf_counter()
    result = call()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    elapsed = time.perf_counter() - started
    del result
    return elapsed


_SETTLED_BYTES = 31 * 2**20
"""glibc raises its mmap threshold to at most 32 MiB, including its header of a block."""


@contextlib.contextmanager
def settled(device: torch.device) -> Iterator[None]:
    """Time calls in this context: garbage collection is off and the allocator has settled.

    glibc maps blocks above a threshold anew on every call, and touching new memory may take longer
    than the call itself. The threshold rises to the largest such block that was freed, so times
    depend on what ran earlier in the process: by up to a factor of six has been observed.
    """
    if device.type == "cpu":
        torch.empty(_SETTLED_BYTES, dtype=torch.uint8)
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_SHAKEN_BYTES = (2**12, 2**16, 2**20, 2**22)
_LONG_SHAKE = 4


def shaken(chance: random.Random) -> list[torch.Tensor]:
    """Allocate random sizes; while they are held, later allocations are placed elsewhere.

    The relative placement of tensors changes the time of a call by 10 % and more, and processes
    forked from one server inherit the same heap.
    """
    sizes = chance.choices(_SHAKEN_BYTES, k=chance.randrange(4, 12))
    return [torch.empty(chance.randrange(1, limit), dtype=torch.uint8) for limit in sizes]


def shaken_blocks(
    a: Timer, b: Timer, count: int, chance: random.Random, *, cap_s: float = math.inf
) -> Iterator[Block]:
    """Take blocks of two calls, with a new memory layout for each block (or few, of long calls).

    Args:
        a, b: timers of the two sides.
        count: number of blocks.
        chance: draws orders and memory layouts.
        cap_s: seconds after which no further block begins; one is always taken.
    """
    until = time.perf_counter() + cap_s
    each = 1 if max(a.seconds, b.seconds) < a.contract.slot_s else _LONG_SHAKE
    for number in range(count):
        if number and time.perf_counter() > until:
            break
        if number % each == 0:
            held = shaken(chance)
            for side in chance.sample((a, b), 2):  # the one called last starts with warm caches
                side.call()
        yield from run_blocks(a.slot, b.slot, 1, chance)
    del held


@dataclass
class Timer:
    """Takes slots of one call.

    Args:
        call: call to time, which has run before. If it has a method ``prepare(calls)``, that is
            called before the clock starts.
        device: device on which it computes.
        contract: contract of the measurement.
        clock: one of the contract's clocks; by default the one that fits the call.
        others: the same call on other copies of the inputs; a graph makes them in turn.
    """

    call: Call
    device: torch.device
    contract: Contract
    clock: str = ""
    others: Sequence[Call] = ()
    calls: int = field(default=1, init=False)
    seconds: float = field(default=math.inf, init=False)

    def __post_init__(self) -> None:
        self._prepare = getattr(self.call, "prepare", _nothing)
        cold = self.contract.cache == "cold"
        self._flush = _flusher(self.device) if cold else None
        self.clock = self.clock or self._fitting_clock()
        self._once, self._batch = self.call, 1
        if self.device.type != "cpu":
            self._warm_up()
        if self.clock == GRAPH_CLOCK:
            self._capture()
        self.calls = self._filling() * self._batch

    def slot(self) -> Slot:
        """Take one slot."""
        if self._flush:
            self._flush()
        if self.device.type != "cpu":
            return Slot(self._by_events(self.calls // self._batch) / self._batch)
        before = _switches()
        seconds = self._by_clock(self.calls)
        return Slot(seconds, _switches() > before)

    def _fitting_clock(self) -> str:
        clock = self.contract.clock(self.device.type)
        if clock != CPU_CLOCK:
            return clock
        waits = _waits()
        wall, own, all_ = time.perf_counter(), time.thread_time(), time.process_time()
        count = 0
        while count < 3 or time.perf_counter() - wall < self.contract.slot_s:
            self.call()
            count += 1
            if count >= _MOST_CALLS or time.perf_counter() - wall > self.contract.cap_s:
                break
        own, all_ = time.thread_time() - own, time.process_time() - all_
        several = all_ > _OWN_THREADS * own + 1e-4
        return WALL_CLOCK if several or _waits() - waits > _WAITING * count else CPU_CLOCK

    def _warm_up(self) -> None:
        """Make calls until the device's clocks have risen to those under load."""
        until = time.perf_counter() + WARM_UP_S
        self._by_events(1)
        while time.perf_counter() < until:
            self._by_events(1)

    def _capture(self) -> None:
        """Replay a graph from now on: of a slot's calls, or of one call on each copy of inputs."""
        each = self._by_events(1)
        alike = 1 if self._flush else min(CAPTURED, round(self.contract.slot_s / max(each, 1e-9)))
        calls = (self.call, *self.others) if self.others else (self.call,) * max(1, alike)
        self._once, self._batch = captured(calls, self.device), len(calls)

    def _filling(self) -> int:
        """The number of calls, or of replays, that fill a slot.

        It is raised until they fill a slot, which also warms everything up. The fastest of three
        tries counts, since an interrupted one would make the slots too short.
        """
        measure = self._by_clock if self.device.type == "cpu" else self._by_events
        calls, wanted = 1, self.contract.slot_s
        while calls < _MOST_CALLS:
            each = measure(calls)
            if each * calls < 20 * wanted:
                each = min(each, *(measure(calls) for _ in range(2)))
            self.seconds = each
            if each * calls >= 0.9 * wanted or self._flush:
                break
            calls = max(2 * calls, min(_MOST_CALLS, int(wanted / max(each, 1e-9)) + 1))
        return max(1, min(calls, round(wanted / max(self.seconds, 1e-9)))) if not self._flush else 1

    def _by_clock(self, calls: int) -> float:
        now = time.thread_time_ns if self.clock == CPU_CLOCK else time.perf_counter_ns
        call, repeat = self.call, range(calls)
        self._prepare(calls)
        started = now()
        for _ in repeat:
            call()
        return max(now() - started, 1) / calls / 1e9

    def _by_events(self, calls: int) -> float:
        """Mean seconds of a number of calls, or of as many replays of their graph."""
        assert self.clock in (EVENT_CLOCK, GRAPH_CLOCK)
        start, end = (torch.Event(self.device, enable_timing=True) for _ in range(2))
        self._prepare(calls)
        start.record()
        for _ in range(calls):
            self._once()
        end.record()
        torch.accelerator.synchronize(self.device)
        return start.elapsed_time(end) / 1e3 / calls


def _nothing(calls: int) -> None:
    """The default ``prepare``: nothing to do."""


def _switches() -> int:
    """How often this thread was preempted so far; 0 if the system does not report it."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else resource.getrusage(who).ru_nivcsw


def _waits() -> int:
    """How often this thread gave up its core to wait; 0 if the system does not report it."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    return 0 if who is None else resource.getrusage(who).ru_nvcsw


def _flusher(device: torch.device) -> Call:
    """A function that writes a buffer four times the largest cache (256 MiB on an accelerator)."""
    size = 4 * cache_bytes() if device.type == "cpu" else 256 * 2**20
    buffer = torch.empty(size // 4, dtype=torch.int32, device=device)
    return buffer.zero_
