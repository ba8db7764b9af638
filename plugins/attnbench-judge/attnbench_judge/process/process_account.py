"""What the system tells of a process: what descends from it, what that holds and computes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import time
from collections.abc import Iterator

_LIBC = ctypes.CDLL(None, use_errno=True)
_OPEN = {"x86_64": 298, "aarch64": 241}
_SOFTWARE, _TASK_CLOCK, _SIZE = 1, 1, 112
_INHERITED, _USER_ONLY = 1 << 1, 1 << 5 | 1 << 6
_AT_ONCE = 20
"""How often a child is looked at without waiting; to stop takes some microseconds."""


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found, new = [], [pid]
    while new:
        found += new
        texts = (text for parent in new for text in _of_threads(parent, "children"))
        new = [int(child) for text in texts for child in text.split()]
    return found


def alive(pid: int) -> bool:
    """Whether a thread of a process has not ended; its first may have."""
    return bool(set(_states(pid)) - {"Z", "X"})


def _states(pid: int) -> list[str]:
    return [text.rpartition(")")[2].split()[0] for text in _of_threads(pid, "stat")]


def _of_threads(pid: int, name: str) -> list[str]:
    """What the files of this name tell of the threads of a process."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            path = f"/proc/{pid}/task/{thread}/{name}"
            with contextlib.suppress(OSError), open(path, "rb", 0) as text:  # the fastest way
                found.append(text.read().decode(errors="replace"))
    return found


def resident_bytes(pid: int) -> int:
    """The memory that a process holds."""
    pages = [int(text.split()[1]) for text in _of_threads(pid, "statm")]
    return max(pages, default=0) * os.sysconf("SC_PAGE_SIZE")


def ending(status: int) -> str:
    """How a process ended, by its status."""
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"


class Clocks:
    """What a process and its descendants computed, and how long they were let to.

    It counts what all threads computed by a performance event that threads and processes inherit,
    also those that nobody waits for. Where the system refuses events, it is the time that passes:
    on its one core, a candidate cannot compute for longer.

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
        self._waits = []
        for one in (pid, os.getpid()):
            with contextlib.suppress(OSError):
                self._waits.append(os.open(f"/proc/{one}/schedstat", os.O_RDONLY | os.O_CLOEXEC))

    @property
    def counts(self) -> bool:
        """Whether it counts what is computed, and nothing else."""
        return self._event >= 0

    def read(self) -> tuple[float, float]:
        """Seconds that were computed, and that passed while neither side waited for a core.

        The wait is that of the first thread of the process, and of this process.
        """
        passed = time.perf_counter()
        computed = passed
        if self.counts:
            computed = struct.unpack("Q", os.read(self._event, 8))[0] / 1e9
        for file in self._waits:
            with contextlib.suppress(OSError, IndexError):  # it has ended
                passed -= int(os.pread(file, 64, 0).split()[1]) / 1e9
        return computed, passed

    def close(self) -> None:
        """Close its files."""
        for file in (*self._waits, *([self._event] if self.counts else [])):
            os.close(file)
        self._waits, self._event = [], -1


def patience(pid: int, clocks: Clocks) -> Iterator[float]:
    """Seconds that a process computed, and those in which nothing of it could run.

    To be asked several times a second: what passed since the last time counts as idle unless a
    thread of it, or of what descends from it, computes or waits for a core that others keep.
    """
    begun, looked, idle = clocks.read()[0], time.monotonic(), 0.0
    while True:
        now = time.monotonic()
        if not any("R" in _states(process) for process in tree(pid)):
            idle += now - looked
        looked = now
        yield clocks.read()[0] - begun + idle


def stopped(pid: int, clocks: Clocks, most_s: float) -> tuple[int, int]:
    """Wait until a child has stopped or ended: its process id, 0 if it did not, and its status."""
    found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
    tries, spent = 1, patience(pid, clocks)
    while not found:
        if tries > _AT_ONCE:  # let it run, where it waits for this core
            time.sleep(1e-5 if tries < 100 else 1e-3)
        if tries % 100 == 0 and next(spent) > most_s:
            break
        found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
        tries += 1
    return found, status
