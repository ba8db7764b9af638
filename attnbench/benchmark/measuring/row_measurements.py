"""The measurements of a row by single processes, and their summary.

A row is a subject at a case. Blocks of one process share that process's bias (the placement of its
memory and code), so intervals are computed over processes. This module does not import torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from attnbench.benchmark.records.record import BASELINE
from attnbench.benchmark.timing.blocks import Block, Slot, low_quantile, pair_value

_MOST = math.log(1000)
_BATCHES = 4
"""Batches into which the blocks of a single process are merged, since neighbours are alike."""


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
        timing_s: seconds spent in slots.
        measuring_s: seconds spent on the whole measurement, including slots.
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
    timing_s: float = 0.0
    measuring_s: float = 0.0
    load: Mapping[str, float] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        """Convert to plain data; :meth:`of_data` is the inverse."""
        return asdict(self)

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> RowMeasurement:
        """Create a measurement from the data that :meth:`as_data` returned."""
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

    @property
    def half_width(self) -> float:
        """Half the width on the log scale, as a share."""
        if not self.known:
            return math.inf
        return math.expm1((math.log(self.high) - math.log(self.low)) / 2)


def interval(logs: Sequence[float]) -> Interval:
    """The mean of logs of ratios and its 95 % interval by Student's t, as ratios."""
    center = statistics.fmean(logs)
    if len(logs) < 2:
        return Interval(math.exp(center), 0.0, math.inf)
    half = _quantile(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    if half > _MOST:
        return Interval(math.exp(center), 0.0, math.inf)
    return Interval(math.exp(center), math.exp(center - half), math.exp(center + half))


def _quantile(df: int) -> float:
    from scipy import special  # scipy.stats takes 0.3 s to import

    return float(special.stdtrit(df, 0.975))


def _of_blocks(blocks: Sequence[Block]) -> Interval:
    """The interval of a single process; it excludes the variation between processes."""
    values = [block.value for block in blocks]
    size = max(1, len(values) // _BATCHES)
    batches = [statistics.median(values[n : n + size]) for n in range(0, len(values), size)]
    found, center = interval(batches), math.exp(pair_value(blocks))
    return Interval(center, min(found.low, center), max(found.high, center))


def ratio_of(measurements: Sequence[RowMeasurement]) -> Interval | None:
    """The ratio to the baseline, with an interval over processes, or over the blocks of one."""
    logs = [each.log_ratio for each in measurements if each.log_ratio is not None]
    if not logs:
        return None
    if len(logs) == 1:
        (only,) = (each for each in measurements if each.blocks)
        return _of_blocks(only.blocks)
    return interval(logs)


def gain_of(kernel: Sequence[RowMeasurement], scoring: Sequence[RowMeasurement]) -> Interval | None:
    """How many times faster a kernel is than its scoring function, from the ratios of both.

    Args:
        kernel, scoring: measurements of each, in the same order of processes; a process counts
            only if both its measurements have a ratio.
    """
    logs = [
        ours - theirs
        for theirs, ours in zip(
            (each.log_ratio for each in kernel),
            (each.log_ratio for each in scoring),
            strict=False,
        )
        if ours is not None and theirs is not None
    ]
    return interval(logs) if logs else None


def summed_up(
    measurements: Sequence[RowMeasurement], baseline: str = BASELINE, tokens: int | None = None
) -> dict[str, Any]:
    """Summarise measurements as the fields of a record."""
    timed = [each for each in measurements if each.slots]
    found: dict[str, Any] = {"status": "ok", "reason": ""}
    for each in measurements:
        found |= each.facts
    wrong = next((each for each in measurements if each.status != "ok"), None)
    if wrong is not None:
        found |= {"status": wrong.status, "reason": wrong.reason}
    found["measuring_s"] = math.fsum(each.measuring_s for each in measurements)
    found["timing_s"] = math.fsum(each.timing_s for each in measurements)
    if not timed:
        return found
    times = [low_quantile(each.slots) for each in timed]
    slots = [slot for each in timed for slot in each.slots]
    spread = times if len(times) >= 3 else [slot.seconds for slot in slots]
    low, _, high = (
        statistics.quantiles(spread, n=4, method="inclusive") if len(spread) > 1 else spread * 3
    )
    middle = statistics.median(times)
    found |= {
        "time_s": middle,
        "tokens_per_s": None if tokens is None else tokens / middle,
        "time_q1_s": min(low, middle),
        "time_q3_s": max(high, middle),
        "times_s": tuple(times),
        "samples_s": tuple(slot.seconds for slot in slots),
        "calls": timed[-1].calls,
        "null_s": _median([each.null_s for each in timed]),
        "load": _loads(timed, slots),
    }
    if found["status"] == "ok":
        logs = [each.log_ratio for each in timed if each.log_ratio is not None]
        ratio = ratio_of(timed)
        found["ratios"] = tuple(math.exp(log) for log in logs)
        if ratio is not None:
            found |= {"baseline": baseline, "ratio": ratio.ratio}
        if ratio is not None and ratio.known:
            found |= {"ratio_low": ratio.low, "ratio_high": ratio.high}
    return found


def _median(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def _loads(measurements: Sequence[RowMeasurement], slots: Sequence[Slot]) -> dict[str, float]:
    """The load of the machine, averaged over the processes."""
    names = dict.fromkeys(name for each in measurements for name in each.load)
    load = {
        n: statistics.fmean(each.load[n] for each in measurements if n in each.load) for n in names
    }
    return {**load, "disturbed_share": sum(slot.disturbed for slot in slots) / len(slots)}
