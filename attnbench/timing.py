"""Building blocks for plugins that time or show times: cases, contracts, slots, blocks, records.

A :class:`Timer` takes slots of the :func:`measured_call` of a subject at a :class:`BenchCase`,
while the process is :func:`settled`; :func:`take_blocks` lets two sides take turns, and
:func:`pair_value` is the log of B's time over A's. A :class:`Record` is what was measured of a
subject at a case: :func:`run_files` finds the files, and :func:`recorded` reads them. Importing
this module imports no torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.frames import recorded
from attnbench.benchmark.machine import Load, busy_cores
from attnbench.benchmark.records import STATUSES, Record, baseline_of, natural, run_files
from attnbench.benchmark.timing.blocks import Block, Slot, pair_value, take_blocks
from attnbench.benchmark.timing.clocks import WALL_CLOCK
from attnbench.benchmark.timing.contract import VERSION, Contract
from attnbench.benchmark.workloads import Selection, saved
from attnbench.report.record_tables import rows as ranked_rows

if TYPE_CHECKING:
    from attnbench.benchmark.timed_calls import measured_call
    from attnbench.benchmark.timing.slots import Timer, settled

_LAZY = {"Timer": "timing.slots", "measured_call": "timed_calls", "settled": "timing.slots"}
"""Names that import torch."""

__all__ = [
    "STATUSES",
    "VERSION",
    "WALL_CLOCK",
    "BenchCase",
    "Block",
    "Contract",
    "Load",
    "Record",
    "Selection",
    "Slot",
    "Timer",
    "baseline_of",
    "busy_cores",
    "measured_call",
    "natural",
    "pair_value",
    "ranked_rows",
    "recorded",
    "run_files",
    "saved",
    "settled",
    "take_blocks",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    module = importlib.import_module(f"attnbench.benchmark.{_LAZY[name]}")
    globals()[name] = value = getattr(module, name)
    return value
