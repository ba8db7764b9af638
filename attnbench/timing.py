"""Building blocks for plugins that time or show times: cases, contracts, slots, blocks, records.

A :class:`Timer` takes slots of the :func:`measured_call` of a subject at a :class:`BenchCase`,
while the process is :func:`settled`; :func:`take_blocks` lets two sides take turns, and
:func:`pair_value` is the log of B's time over A's. A :class:`Record` is what was measured of a
subject at a case: :func:`run_files` finds the files, and :func:`recorded` reads them. Importing
this module imports no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from attnbench.benchmark.bench_case import BenchCase as BenchCase
from attnbench.benchmark.frames import recorded as recorded
from attnbench.benchmark.machine import Load as Load
from attnbench.benchmark.machine import busy_cores as busy_cores
from attnbench.benchmark.records import STATUSES as STATUSES
from attnbench.benchmark.records import Record as Record
from attnbench.benchmark.records import baseline_of as baseline_of
from attnbench.benchmark.records import natural as natural
from attnbench.benchmark.records import run_files as run_files
from attnbench.benchmark.timing.blocks import Block as Block
from attnbench.benchmark.timing.blocks import Slot as Slot
from attnbench.benchmark.timing.blocks import pair_value as pair_value
from attnbench.benchmark.timing.blocks import take_blocks as take_blocks
from attnbench.benchmark.timing.clocks import WALL_CLOCK as WALL_CLOCK
from attnbench.benchmark.timing.contract import VERSION as VERSION
from attnbench.benchmark.timing.contract import Contract as Contract
from attnbench.benchmark.workloads import Selection as Selection
from attnbench.benchmark.workloads import saved as saved
from attnbench.report.record_tables import ranked_rows as ranked_rows

if TYPE_CHECKING:
    from attnbench.benchmark.timed_calls import measured_call as measured_call
    from attnbench.benchmark.timing.slots import Timer as Timer
    from attnbench.benchmark.timing.slots import settled as settled

_LAZY = {"Timer": "timing.slots", "measured_call": "timed_calls", "settled": "timing.slots"}
"""Names that import torch."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    module = importlib.import_module(f"attnbench.benchmark.{_LAZY[name]}")
    globals()[name] = value = getattr(module, name)
    return value
