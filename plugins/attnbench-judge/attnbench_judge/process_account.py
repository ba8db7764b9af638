"""What the system tells of a process: what descends from it, what that holds and computes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import struct
import time

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


def _running(pid: int) -> bool:
    """Whether a thread of a process, or of what descends from it, computes or waits for a core."""
    return any("R" in _states(process) for process in tree(pid))


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

    @property
    def counts(self) -> bool:
        """Whether it counts what is computed, and nothing else."""
        return self._event >= 0

    def seconds(self) -> float:
        """The reading of the clock."""
        if not self.counts:
            return time.perf_counter()
        (nanoseconds,) = struct.unpack("Q", os.read(self._event, 8))
        return float(nanoseconds) / 1e9

    def close(self) -> None:
        """Close the event."""
        if self._event >= 0:
            os.close(self._event)
            self._event = -1


class WaitingClock:
    """Seconds that the first threads of processes were ready and waited for a core, in all.

    Args:
        pids: the processes.
    """

    def __init__(self, *pids: int) -> None:
        self._files = []
        for pid in pids:
            with contextlib.suppress(OSError):
                self._files.append(os.open(f"/proc/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC))

    def seconds(self) -> float:
        """The reading of the clock."""
        waited = 0
        for file in self._files:
            with contextlib.suppress(OSError, IndexError):  # it has ended
                waited += int(os.pread(file, 64, 0).split()[1])
        return waited / 1e9

    def close(self) -> None:
        """Close its files."""
        while self._files:
            os.close(self._files.pop())


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
        if not _running(self._pid):
            self._idle += now - self._looked
        self._looked = now
        return self._clock.seconds() - self._begun + self._idle


def stopped(pid: int, clock: ComputingClock, most_s: float) -> tuple[int, int]:
    """Wait until a child has stopped or ended: its process id, 0 if it did not, and its status."""
    found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
    tries, patience = 1, None
    while not found:
        if tries > _AT_ONCE:  # let it run, where it waits for this core
            time.sleep(1e-5 if tries < 100 else 1e-3)
        if tries % 100 == 0:
            patience = patience or Patience(pid, clock)
            if patience.spent() > most_s:
                break
        found, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
        tries += 1
    return found, status
