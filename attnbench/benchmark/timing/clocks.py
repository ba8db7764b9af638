"""The clocks of a slot. They are bound at import, so that replacing them in ``time`` does nothing.

A call is timed by the CPU time of the whole process, which stands still while another process has
the core and counts every thread that the call starts. A call that waits is timed by the wall clock.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, perf_counter_ns, process_time_ns
from typing import Any

CPU_CLOCK = "CPU time of all threads"
WALL_CLOCK = "wall clock"
EVENT_CLOCK = "device events"
GRAPH_CLOCK = "device events around a replayed graph"

_WAITING = 0.5
"""A call with more voluntary context switches than this waits for something."""
_MOST_CALLS = 1_000_000


@dataclass(frozen=True)
class Reading:
    """The clocks at one moment.

    Args:
        cpu_ns, wall_ns: CPU time of the process, and wall time.
        waits: how often this thread gave up its core to wait; 0 if the system does not report it.
        switches: how often it was preempted.
    """

    cpu_ns: int
    wall_ns: int
    waits: int
    switches: int

    def waited(self, since: Reading, calls: int) -> bool:
        """Whether these calls waited, other than once or twice by chance."""
        return self.waits - since.waits > _WAITING * calls + 2


def read() -> Reading:
    """Read all clocks, those that time a slot last."""
    who = getattr(resource, "RUSAGE_THREAD", None)  # of Linux
    usage = None if who is None else resource.getrusage(who)
    waits, switches = (0, 0) if usage is None else (usage.ru_nvcsw, usage.ru_nivcsw)
    return Reading(process_time_ns(), perf_counter_ns(), waits, switches)


def fitting_clock(call: Callable[[], Any], slot_s: float, cap_s: float) -> str:
    """Find the clock that fits a call on a CPU, by making calls for as long as a slot takes."""
    waits, start, count = read().waits, perf_counter(), 0
    while count < 3 or perf_counter() - start < slot_s:
        call()
        count += 1
        if count >= _MOST_CALLS or perf_counter() - start > cap_s:
            break
    return WALL_CLOCK if read().waits - waits > _WAITING * count else CPU_CLOCK
