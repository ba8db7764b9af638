"""Slots: some milliseconds of consecutive calls, timed as a whole.

On an accelerator, device events around the calls, or around a replayed graph of them, give the
time; elsewhere see :mod:`clocks`. Every call of a slot gets fresh inputs, and an output of some
slots is kept; both happen while the clock is stopped.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter, perf_counter_ns
from typing import Any

import torch

from attnbench.benchmark.timing.blocks import Slot
from attnbench.benchmark.timing.clocks import (
    CPU_CLOCK,
    EVENT_CLOCK,
    GRAPH_CLOCK,
    fitting_clock,
    read,
)
from attnbench.benchmark.timing.contract import Contract
from attnbench.benchmark.timing.rotation import FreshCall
from attnbench.benchmark.timing.samples import Samples, difference, tensors_of
from attnbench.benchmark.timing.switches import put_back

Call = Callable[[], object]
_MOST_CALLS = 4_096
"""Most calls in a slot; no attention takes less than 1 µs."""
_FLUSHED_BYTES = 2**28
WARM_UP_S = 0.5
"""Seconds for which an accelerator is kept busy before the first slot."""


def first_call(call: Call, device: torch.device) -> float:
    """Time the first call until its result is available, including any compilation, in seconds."""
    start = perf_counter()
    result = call()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    elapsed = perf_counter() - start
    del result
    return elapsed


SETTLED_BYTES = 31 * 2**20
"""glibc raises its mmap threshold to at most 32 MiB, including its header of a block."""


@contextlib.contextmanager
def settled(device: torch.device) -> Iterator[None]:
    """Time calls in this context: garbage collection is off and the allocator has settled.

    glibc maps blocks above a threshold anew on every call, and touching new memory may take longer
    than the call itself. The threshold rises to the largest such block that was freed, so times
    depend on what ran earlier in the process: by up to a factor of six has been observed.
    """
    if device.type == "cpu":
        torch.empty(SETTLED_BYTES, dtype=torch.uint8)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


_BALLAST_BYTES = (2**12, 2**16, 2**20, 2**22)


def ballast(chance: random.Random) -> list[torch.Tensor]:
    """Allocate random sizes; while they are held, later allocations are placed elsewhere.

    The relative placement of tensors changes the time of a call by 10 % and more, and processes
    forked from one server inherit the same heap.
    """
    sizes = chance.choices(_BALLAST_BYTES, k=chance.randrange(4, 12))
    return [torch.empty(chance.randrange(1, limit), dtype=torch.uint8) for limit in sizes]


@dataclass
class Timer:
    """Takes slots of one call.

    Args:
        call: call to time, which has run before. If it is a :class:`FreshCall`, every call gets
            fresh inputs, and outputs are kept.
        device: device on which it computes.
        contract: how it is measured.
        clock: one of the clocks; by default the one that fits the call.
    """

    call: Call
    device: torch.device
    contract: Contract
    clock: str = ""
    calls: int = field(default=1, init=False)
    seconds: float = field(default=math.inf, init=False)
    samples: Samples = field(init=False)

    def __post_init__(self) -> None:
        call = self.call
        self._calls: FreshCall = (
            call if isinstance(call, FreshCall) else FreshCall(lambda argument: call(), (), list)
        )
        self.samples = Samples(self._calls.repeat)  # those of the tries are dropped
        self._ballast: list[torch.Tensor] = []
        self._flush = _flusher(self.device) if self.contract.cache == "cold" else None
        usual = self.contract.clock(self.device.type)
        if not self.clock and usual == CPU_CLOCK:
            usual = fitting_clock(self.call, self.contract.slot_s, self.contract.cap_s)
        self.clock = self.clock or usual
        if self.device.type != "cpu":
            self._warm_up()
        if self.clock == GRAPH_CLOCK:
            self._capture()
        self.calls = self._slot_calls() * self._calls.size
        self.samples = Samples(self._calls.repeat)

    def slot(self) -> Slot:
        """Take one slot."""
        put_back()
        if self._flush:
            self._flush()
        return self._timed(self.calls)

    def shake(self, seed: int) -> None:
        """Move the tensors that the call reads and writes to other places, and call it once."""
        self._ballast = ballast(random.Random(seed))  # noqa: S311 -- places, not secrets
        self._calls.move()
        self._calls()

    def difference(self, inputs: Any, results: Sequence[torch.Tensor]) -> str:
        """How the results of a call on these inputs differ from others, in words."""
        assert isinstance(self.call, FreshCall)
        return difference(tensors_of(self.call.repeat(inputs)), results)

    def _warm_up(self) -> None:
        """Make calls until the device's clocks have risen to those under load."""
        deadline = perf_counter() + WARM_UP_S
        self._timed(1)
        while perf_counter() < deadline:
            self._timed(1)

    def _capture(self) -> None:
        """Replay a graph of a slot's calls from now on."""
        from attnbench.benchmark.timing.graphs import GRAPH_CALLS, Graph

        call_s = self._timed(1).seconds
        count = max(1, min(GRAPH_CALLS, round(self.contract.slot_s / max(call_s, 1e-9))))
        self._calls = Graph(self._calls, count, self.device)

    def _slot_calls(self) -> int:
        """The number of calls, or of replays, that fill a slot.

        It is raised until they fill a slot, which also warms everything up. The fastest of three
        tries counts, since an interrupted one would make the slots too short.
        """
        calls, slot_s = 1, self.contract.slot_s
        while calls < _MOST_CALLS:
            call_s = self._tried(calls)
            if call_s * calls < 20 * slot_s:
                call_s = min(call_s, *(self._tried(calls) for _ in range(2)))
            self.seconds = call_s
            if call_s * calls >= 0.9 * slot_s or self._flush:
                break
            calls = max(2 * calls, min(_MOST_CALLS, int(slot_s / max(call_s, 1e-9)) + 1))
        return max(1, min(calls, round(slot_s / max(self.seconds, 1e-9)))) if not self._flush else 1

    def _tried(self, calls: int) -> float:
        """Mean seconds of a number of calls, or of replays."""
        return self._timed(calls * self._calls.size).seconds * self._calls.size

    def _timed(self, calls: int) -> Slot:
        """Time consecutive calls; the output of one of them may be kept."""
        count, made = max(1, calls // self._calls.size), self._calls
        made.prepare(count)
        slot, (output, number) = (
            self._by_clock(count) if self.device.type == "cpu" else self._by_events(count)
        )
        if made.tensors:  # other calls are only timed
            inputs_of = functools.partial(made.inputs_of, number)
            self.samples.add(output, inputs_of, count, rewrites=made.rewrites)
        return slot

    def _by_clock(self, calls: int) -> tuple[Slot, tuple[object, int]]:
        before = read()
        kept = self._made(calls)
        after = read()
        use_wall = self.clock != CPU_CLOCK or after.waited(before, calls)
        elapsed = after.wall_ns - before.wall_ns if use_wall else after.cpu_ns - before.cpu_ns
        return Slot(max(elapsed, 1) / calls / 1e9, after.switches > before.switches), kept

    def _by_events(self, calls: int) -> tuple[Slot, tuple[object, int]]:
        assert self.clock in (EVENT_CLOCK, GRAPH_CLOCK)
        start, end = (torch.Event(self.device, enable_timing=True) for _ in range(2))
        start.record()
        kept = self._made(calls)
        end.record()
        torch.accelerator.synchronize(self.device)
        return Slot(start.elapsed_time(end) / 1e3 / calls / self._calls.size), kept

    def _made(self, calls: int) -> tuple[Any, int]:
        """Make the calls, and return the output of one of them, and its number.

        Which one is decided by the nanosecond in which it has ended, since a call can read what was
        decided before it. If none is chosen, the last one is returned.
        """
        call, kept = self._calls, None
        for number in range(calls - 1):
            output = call()
            if perf_counter_ns() % calls == 0:
                kept = output, number
            del output  # or each call would find one more buffer taken
        output = call()
        return kept or (output, calls - 1)


def _flusher(device: torch.device) -> Call:
    """A function that writes a buffer larger than the caches of any processor or accelerator."""
    buffer = torch.empty(_FLUSHED_BYTES // 4, dtype=torch.int32, device=device)
    return buffer.zero_
