"""Processes as the system shows them: what descends from one, and how one ended."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

__all__ = ["alive", "ending", "resident_bytes", "running", "tree"]


def tree(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found, new = [], [pid]
    while new:
        found += new
        new = [child for parent in new for child in _children(parent)]
    return found


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children") as file:
                found += map(int, file.read().split())
    return found


def alive(pid: int) -> bool:
    """Whether a process has not ended; one that waits to be asked for its exit code has."""
    try:
        return _fields(pid)[0] not in "ZX"
    except OSError:
        return False


def running(pid: int) -> bool:
    """Whether a thread of a process, or of what descends from it, computes or waits for a core."""
    for process in tree(pid):
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with contextlib.suppress(OSError):
                    if _fields(f"{process}/task/{thread}")[0] == "R":
                        return True
    return False


def _fields(place: int | str) -> list[str]:
    return Path(f"/proc/{place}/stat").read_text().rpartition(")")[2].split()


def resident_bytes(pid: int) -> int:
    """The memory that a process holds."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def ending(status: int) -> str:
    """How a process ended, by its status."""
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"
