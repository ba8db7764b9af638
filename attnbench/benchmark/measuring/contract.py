"""The measurement contract: what a number means, in a name that travels with it."""

from __future__ import annotations

from dataclasses import dataclass

from attnbench.errors import UsageError, nearest

__all__ = ["CACHES", "DIRECTIONS", "Contract"]

DIRECTIONS = {
    "forward": "the output, without a graph",
    "forward_backward": "the output, and the gradients of all inputs and parameters",
}
"""What is timed."""

CACHES = {
    "warm": "the same inputs call after call",
    "cold": "a buffer larger than the last cache is written before each sample of one call",
}
"""The state of the caches before a sample."""

VERSION = 2
"""Raised when a contract of the same name would give other numbers."""


@dataclass(frozen=True, kw_only=True)
class Contract:
    """How a number is taken.

    A sample is the mean time of some consecutive calls, at least ``sample_s`` together (one call
    with a cold cache). Samples are taken until the standard error of their median is below
    ``target``, or ``cap_s`` has passed. On a CPU, freed blocks of up to 32 MiB stay with the
    process, as all do on an accelerator, and the clock is the system's monotonic one; on an
    accelerator its own events, which are read after the last sample: nothing waits in between.

    Args:
        cache: a key of :data:`CACHES`.
        threads: of torch within an operator.
        target: the relative standard error of the median to be reached.
        min_samples: fewest samples, unless ``cap_s`` has passed after 3.
        min_s: least time spent on samples.
        cap_s: time after which no further sample is begun.
        sample_s: least time of a sample.

    Raises:
        UsageError: a field that cannot be.
    """

    cache: str = "warm"
    threads: int = 1
    target: float = 0.02
    min_samples: int = 7
    min_s: float = 0.05
    cap_s: float = 1.0
    sample_s: float = 0.001

    def __post_init__(self) -> None:
        if self.cache not in CACHES:
            raise UsageError(
                f"no cache state is called {self.cache!r}. {nearest(self.cache, CACHES)}"
            )
        if self.threads < 1:
            raise UsageError(f"threads = {self.threads}, but is at least 1.")

    def name(self, direction: str, device: str) -> str:
        """The name of the contract for a direction and a device; equal names, equal meaning."""
        clock = "clock" if device.partition(":")[0] == "cpu" else "events"
        threads = f"{self.threads} thread" + ("s" if self.threads > 1 else "")
        sampling = f"rse {self.target:.1%} cap {self.cap_s:g} s"
        parts = (direction, f"{self.cache} cache", clock, threads, sampling, f"v{VERSION}")
        return ", ".join(parts)
