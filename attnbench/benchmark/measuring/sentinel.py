"""Sentinels: a fixed copy and a fixed matrix product that say whether the machine is quiet.

They are timed in the process and with the threads of the measurement, right before and after it.
The same readings give the machine's ceilings: its bandwidth and its rate of matrix products.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from attnbench.benchmark.measuring.clock import cache_bytes
from attnbench.benchmark.measuring.quiet import Reading

__all__ = ["Sentinel"]


class Sentinel:
    """The buffers of the sentinels on one device.

    The copy is from a buffer as large as the last cache to another (256 MiB on an accelerator), so
    that it goes through memory.

    Args:
        device: where.
        dtype: of the matrix product, since ceilings differ by dtype.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        on_cpu = device.type == "cpu"
        size = min(max(cache_bytes(), 2**24), 2**27) if on_cpu else 2**28
        self.device, self.side = device, 512 if on_cpu else 4096
        self._from = torch.ones(size // 4, dtype=torch.int32, device=device)
        self._to = torch.ones_like(self._from)
        self._left = torch.ones(self.side, self.side, dtype=dtype, device=device)
        self._out = torch.empty_like(self._left)
        self._matmul()  # the first one sets libraries up
        self._copy()

    def read(self) -> Reading:
        """Time each three times; their medians."""
        copies, products = zip(
            *((self._timed(self._copy), self._timed(self._matmul)) for _ in range(3)), strict=True
        )
        return Reading(statistics.median(copies), statistics.median(products))

    def _copy(self) -> None:
        self._to.copy_(self._from)

    def _matmul(self) -> None:
        torch.mm(self._left, self._left, out=self._out)

    def _timed(self, call: Callable[[], None]) -> float:
        if self.device.type == "cpu":
            started = time.perf_counter()
            call()
            return time.perf_counter() - started
        start, end = (torch.Event(self.device, enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.accelerator.synchronize(self.device)
        return start.elapsed_time(end) / 1e3

    @property
    def moved_bytes(self) -> int:
        """Bytes that the copy reads and writes."""
        return 2 * self._from.numel() * self._from.element_size()

    @property
    def operations(self) -> int:
        """Operations of the matrix product."""
        return 2 * int(self.side) ** 3
