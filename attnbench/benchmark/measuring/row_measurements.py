"""The measurements of a row by single processes, and their summary.

A row is a subject at a case. Blocks of one process share that process's bias (the placement of its
memory and code), so intervals are computed over processes. This module does not import torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.machine.load import mean_load
from attnbench.benchmark.records.record import BASELINE
from attnbench.benchmark.timing.blocks import (
    Block,
    Slot,
    low_quantile,
    pair_value,
    student_quantile,
)
from attnbench.registry.address import Address

_MOST = math.log(1000)
_BATCHES = 4
"""Batches into which the blocks of a single process are merged, since neighbours are alike."""


@dataclass(frozen=True)
class Job:
    """A row that a process measures.

    Args:
        target: address of the subject.
        case: case at which it is measured.
        with_facts: whether to also measure agreement, memory and counts.
        clock: clock that the first process chose; if empty, this process chooses one.
    """

    target: Address
    case: BenchCase
    with_facts: bool = True
    clock: str = ""


@dataclass(frozen=True)
class RowMeasurement:
    """The measurement of a row by one process.

    Args:
        status, reason: as in a record.
        facts: further fields of the record, from the process that also measured them.
        clock: clock that timed the slots.
        calls: calls in a slot of the subject.
        slots: slots of the subject.
        blocks: blocks with the baseline as side A; empty without a baseline.
        null_s: seconds of a call whose kernel computes nothing.
        load: load of the machine; see :class:`attnbench.benchmark.machine.load.Load`.
    """

    status: str
    reason: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    clock: str = ""
    calls: int = 1
    slots: tuple[Slot, ...] = ()
    blocks: tuple[Block, ...] = ()
    null_s: float | None = None
    load: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> RowMeasurement:
        """Create a measurement from the data that :func:`dataclasses.asdict` made of one."""
        slots = tuple(Slot(**slot) for slot in data["slots"])
        blocks = tuple(
            Block(block["order"], tuple(Slot(**slot) for slot in block["slots"]))
            for block in data["blocks"]
        )
        return cls(**{**data, "slots": slots, "blocks": blocks})

    @property
    def time_s(self) -> float | None:
        """Seconds of a call: a low quantile of the slots."""
        return low_quantile(self.slots) if self.slots else None

    @property
    def log_ratio(self) -> float | None:
        """The log of the ratio of the time to the baseline's."""
        return pair_value(self.blocks) if self.blocks else None


@dataclass(frozen=True)
class Interval:
    """A ratio and its 95 % interval."""

    ratio: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether the interval is finite."""
        return self.low > 0 and math.isfinite(self.high)


def interval(logs: Sequence[float]) -> Interval:
    """The mean of logs of ratios and its 95 % interval by Student's t, as ratios."""
    center = statistics.fmean(logs)
    if len(logs) < 2:
        return Interval(math.exp(center), 0.0, math.inf)
    margin = student_quantile(len(logs) - 1, 0.025) * statistics.stdev(logs) / math.sqrt(len(logs))
    if margin > _MOST:
        return Interval(math.exp(center), 0.0, math.inf)
    return Interval(math.exp(center), math.exp(center - margin), math.exp(center + margin))


def _of_blocks(blocks: Sequence[Block]) -> Interval:
    """The interval of a single process; it excludes the variation between processes."""
    values = [block.value for block in blocks]
    size = max(1, len(values) // _BATCHES)
    batches = [statistics.median(values[n : n + size]) for n in range(0, len(values), size)]
    batch_interval, center = interval(batches), math.exp(pair_value(blocks))
    return Interval(center, min(batch_interval.low, center), max(batch_interval.high, center))


def ratio_of(measurements: Sequence[RowMeasurement]) -> Interval | None:
    """The ratio to the baseline, with an interval over processes, or over the blocks of one."""
    logs = [m.log_ratio for m in measurements if m.log_ratio is not None]
    if not logs:
        return None
    if len(logs) == 1:
        (single,) = (m for m in measurements if m.blocks)
        return _of_blocks(single.blocks)
    return interval(logs)


def gain_of(kernel: Sequence[RowMeasurement], scoring: Sequence[RowMeasurement]) -> Interval | None:
    """How many times faster a kernel is than its scoring function, from the ratios of both.

    Args:
        kernel, scoring: measurements of each, in the same order of processes; a process counts
            only if both its measurements have a ratio.
    """
    logs = [
        scoring_log - kernel_log
        for kernel_log, scoring_log in zip(
            (m.log_ratio for m in kernel),
            (m.log_ratio for m in scoring),
            strict=False,
        )
        if scoring_log is not None and kernel_log is not None
    ]
    return interval(logs) if logs else None


def summary_fields(
    measurements: Sequence[RowMeasurement], baseline: str = BASELINE, tokens: int | None = None
) -> dict[str, Any]:
    """Summarise measurements as the fields of a record."""
    sources = [m for m in measurements if m.slots]
    fields: dict[str, Any] = {"status": "ok", "reason": ""}
    for m in measurements:
        fields |= m.facts
    fault = next((m for m in measurements if m.status != "ok"), None)
    if fault is not None:
        fields |= {"status": fault.status, "reason": fault.reason}
    if not sources:
        return fields
    times = [low_quantile(m.slots) for m in sources]
    slots = [slot for m in sources for slot in m.slots]
    values = times if len(times) >= 3 else [slot.seconds for slot in slots]
    low, _, high = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    )
    median_s = statistics.median(times)
    null_s = [m.null_s for m in sources if m.null_s is not None]
    disturbed = sum(slot.disturbed for slot in slots)
    fields |= {
        "time_s": median_s,
        "tokens_per_s": None if tokens is None else tokens / median_s,
        "time_q1_s": min(low, median_s),
        "time_q3_s": max(high, median_s),
        "times_s": tuple(times),
        "samples_s": tuple(slot.seconds for slot in slots),
        "calls": sources[-1].calls,
        "null_s": statistics.median(null_s) if null_s else None,
        "load": {**mean_load(m.load for m in sources), "disturbed_share": disturbed / len(slots)},
    }
    if fields["status"] == "ok":
        logs = [m.log_ratio for m in sources if m.log_ratio is not None]
        ratio = ratio_of(sources)
        fields["ratios"] = tuple(math.exp(log) for log in logs)
        if ratio is not None:
            fields |= {"baseline": baseline, "ratio": ratio.ratio}
        if ratio is not None and ratio.known:
            fields |= {"ratio_low": ratio.low, "ratio_high": ratio.high}
    return fields
