"""The clock of what a process and all that it starts compute, and how long one waited for it."""

from __future__ import annotations

import ctypes
import os
import struct
import time

from attnbench.judging.process_tree import running

_LIBC = ctypes.CDLL(None, use_errno=True)
_OPEN = {"x86_64": 298, "aarch64": 241}
_SOFTWARE, _TASK_CLOCK, _SIZE = 1, 1, 112
_INHERITED, _USER_ONLY = 1 << 1, 1 << 5 | 1 << 6


class ComputingClock:
    """Seconds that all threads of a process and of its descendants computed.

    It counts by a performance event that threads and processes inherit, also those that nobody
    waits for. Where the system refuses events, it is the time that passes: on its one core, a
    candidate cannot compute for longer.

    Args:
        pid: a process that has not started others yet.
    """

    def __init__(self, pid: int) -> None:
        self._event = -1
        for flags in (_INHERITED, _INHERITED | _USER_ONLY):
            told = struct.pack("IIQQQQQ", _SOFTWARE, _SIZE, _TASK_CLOCK, 0, 0, 0, flags)
            number = _OPEN.get(os.uname().machine, -1)
            if self._event < 0:
                attributes = told.ljust(_SIZE, b"\0")
                self._event = _LIBC.syscall(number, attributes, pid, -1, -1, 8)

    def seconds(self) -> float:
        """The reading of the clock."""
        if self._event < 0:
            return time.perf_counter()
        (nanoseconds,) = struct.unpack("Q", os.read(self._event, 8))
        return float(nanoseconds) / 1e9

    def close(self) -> None:
        """Close the event."""
        if self._event >= 0:
            os.close(self._event)
            self._event = -1


class Patience:
    """How long a process had to do something, not counting the time that others kept its core.

    Args:
        pid: the process.
        clock: its clock.
    """

    def __init__(self, pid: int, clock: ComputingClock) -> None:
        self._pid, self._clock = pid, clock
        self._begun, self._looked = clock.seconds(), time.monotonic()
        self._idle = 0.0

    def spent(self) -> float:
        """Seconds that it computed, and those in which nothing of it could run.

        To be called several times a second: what passed since the last call counts as idle unless
        a thread is ready to run now.
        """
        now = time.monotonic()
        if not running(self._pid):
            self._idle += now - self._looked
        self._looked = now
        return self._clock.seconds() - self._begun + self._idle
