"""The measurement contract: how a number was measured, as a name that is recorded with it."""

from __future__ import annotations

from dataclasses import dataclass

from attnbench.benchmark.timing.blocks import QUANTILE
from attnbench.benchmark.timing.clocks import CPU_CLOCK, EVENT_CLOCK, GRAPH_CLOCK, WALL_CLOCK
from attnbench.errors import UsageError, check_name

DIRECTIONS = {
    "forward": "the output, without a graph",
    "forward_backward": "the output, and the gradients of all inputs and parameters",
    "prefill": "the outputs of S tokens, by one call of a layer without a cache",
    "decode": "the output of the last of S tokens, by a layer whose cache holds the others",
}
"""What is timed."""

LAYER_DIRECTIONS = ("prefill", "decode")
"""The directions of layers; the others are for attention, called with query, key and value."""

CACHES = {
    "warm": "inputs that overlap from call to call",
    "cold": "a buffer larger than the last cache is written before each slot of one call",
}
"""The state of the processor's caches before a slot."""

TIMINGS = {
    "call": "as a user calls it, with the time that Python takes to start what the device does",
    "device": "the calls of a replayed CUDA graph; with a warm cache only",
}
"""What is timed on a CUDA device; elsewhere it is always ``call``."""

VERSION = 4
"""Increased when the same settings would give different numbers."""


@dataclass(frozen=True, kw_only=True)
class Contract:
    """How a number is measured.

    A slot is the mean time of consecutive calls that together take ``slot_s``, or of a single call
    if it takes longer or the cache is cold. A subject and its baseline take slots in turn, in
    blocks of four, in one process after another. The ratio of a process is the median over its
    blocks; its time is a low quantile of its slots. On a CPU the allocator keeps freed blocks of up
    to 32 MiB, as torch's allocator does on an accelerator with all blocks.

    Args:
        cache: a key of :data:`CACHES`.
        timing: a key of :data:`TIMINGS`.
        threads: torch's threads within an operator.
        slot_s: duration of a slot, in seconds.
        blocks: most blocks of a row in a process.
        cap_s: seconds after which a row gets no further block in a process.

    Raises:
        UsageError: a field has an invalid value.
    """

    cache: str = "warm"
    timing: str = "call"
    threads: int = 1
    slot_s: float = 0.004
    blocks: int = 8
    cap_s: float = 0.3

    def __post_init__(self) -> None:
        check_name("cache state", self.cache, CACHES, UsageError)
        check_name("timing", self.timing, TIMINGS, UsageError)
        if (self.timing, self.cache) == ("device", "cold"):
            raise UsageError("a replayed graph is timed with a warm cache; use '--timing call'.")
        for name in ("threads", "blocks", "slot_s", "cap_s"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} = {getattr(self, name)}, but must be above 0.")

    def timing_on(self, device: str) -> str:
        """The timing used on a device; ``device`` only on CUDA."""
        return self.timing if device.partition(":")[0] == "cuda" else "call"

    def clock(self, device: str) -> str:
        """The clock used on a device for a call that does not wait."""
        if device.partition(":")[0] != "cpu":
            return GRAPH_CLOCK if self.timing_on(device) == "device" else EVENT_CLOCK
        return CPU_CLOCK if self.threads == 1 else WALL_CLOCK

    def name(self, direction: str, device: str, clock: str = "") -> str:
        """The name of the contract; numbers with equal names are comparable.

        Args:
            direction: a key of :data:`DIRECTIONS`.
            device: torch device.
            clock: clock, if it is not the usual one of the device.
        """
        threads = f"{self.threads} thread" + ("s" if self.threads > 1 else "")
        sampling = f"{self.blocks} blocks of slots of {self.slot_s * 1e3:g} ms"
        parts = (
            direction,
            f"{self.cache} cache",
            clock or self.clock(device),
            threads,
            sampling,
            f"cap {self.cap_s:g} s",
            f"quantile {QUANTILE:g}",
            f"v{VERSION}",
        )
        return ", ".join(parts)

    def names(self, direction: str, device: str) -> set[str]:
        """All names that its records may carry, since a call may need the wall clock."""
        return {self.name(direction, device, clock) for clock in ("", WALL_CLOCK)}
