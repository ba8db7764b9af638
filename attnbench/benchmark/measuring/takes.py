"""Takes: what one process gave of a row, and what several of them say together.

A row is a subject at a case. Blocks of one process share what that process is off by (where its
memory lies, how its code was laid out), so an interval comes from processes. Imports no torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from attnbench.benchmark.measuring.blocks import Block, Slot, low_quantile, pair_value
from attnbench.benchmark.records.record import BASELINE

__all__ = ["Interval", "Take", "gain_of", "interval", "ratio_of", "summed_up"]

_MOST = math.log(1000)
_BATCHES = 4
"""Blocks of a single process are taken together in so many batches, since neighbours are alike."""


@dataclass(frozen=True)
class Take:
    """What one process gave of a row.

    Args:
        status, reason: as of a record.
        facts: further fields of the record, from the process that looked closer.
        clock: by which the slots were timed.
        calls: calls in a slot of the subject.
        slots: of the subject.
        blocks: with the baseline as side A; none without a baseline.
        null_s: time of a call whose kernel computes nothing.
        timing_s: time spent in slots.
        measuring_s: time spent on all that was measured, the slots included.
        load: how busy the machine was, see :class:`attnbench.benchmark.machine.load.Load`.
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
        """Plain data, from which :meth:`of_data` makes it again."""
        return asdict(self)

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Take:
        """The take that gave this data."""
        slots = tuple(Slot(**slot) for slot in data["slots"])
        blocks = tuple(
            Block(block["order"], tuple(Slot(**slot) for slot in block["slots"]))
            for block in data["blocks"]
        )
        return cls(**{**data, "slots": slots, "blocks": blocks})

    @property
    def time_s(self) -> float | None:
        """Time of a call: a low quantile of the slots."""
        return low_quantile(self.slots) if self.slots else None

    @property
    def log_ratio(self) -> float | None:
        """The log of the time over the baseline's."""
        return pair_value(self.blocks) if self.blocks else None


@dataclass(frozen=True)
class Interval:
    """A ratio and its 95 % interval.

    Args:
        ratio: the estimate.
        low, high: the interval; infinitely wide if nothing can be said.
    """

    ratio: float
    low: float
    high: float

    @property
    def known(self) -> bool:
        """Whether anything can be said of the interval."""
        return self.low > 0 and math.isfinite(self.high)

    @property
    def half_width(self) -> float:
        """Half the width on the log scale, as a share."""
        if not self.known:
            return math.inf
        return math.expm1((math.log(self.high) - math.log(self.low)) / 2)


def interval(logs: Sequence[float]) -> Interval:
    """The mean of some logs and its 95 % interval by Student's t, as ratios."""
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
    """The interval of a single process: what other processes would give is not in it."""
    values = [block.value for block in blocks]
    size = max(1, len(values) // _BATCHES)
    batches = [statistics.median(values[n : n + size]) for n in range(0, len(values), size)]
    found, center = interval(batches), math.exp(pair_value(blocks))
    return Interval(center, min(found.low, center), max(found.high, center))


def ratio_of(takes: Sequence[Take]) -> Interval | None:
    """The ratio to the baseline over processes; of one process, over its blocks."""
    logs = [take.log_ratio for take in takes if take.log_ratio is not None]
    if not logs:
        return None
    if len(logs) == 1:
        (only,) = (take for take in takes if take.blocks)
        return _of_blocks(only.blocks)
    return interval(logs)


def gain_of(kernel: Sequence[Take], scoring: Sequence[Take]) -> Interval | None:
    """How many times faster a kernel is than its scoring function, from the ratios of both.

    Args:
        kernel, scoring: the takes of either, by process; only those of a process count that has
            both.
    """
    logs = [
        ours - theirs
        for theirs, ours in zip(
            (take.log_ratio for take in kernel), (take.log_ratio for take in scoring), strict=False
        )
        if ours is not None and theirs is not None
    ]
    return interval(logs) if logs else None


def summed_up(
    takes: Sequence[Take], baseline: str = BASELINE, tokens: int | None = None
) -> dict[str, Any]:
    """The fields of a record that its takes give together.

    Args:
        takes: of one row.
        baseline: what it was paired with.
        tokens: of a call of a layer.
    """
    timed = [take for take in takes if take.slots]
    found: dict[str, Any] = {"status": takes[0].status, "reason": takes[0].reason}
    for take in takes:
        found |= take.facts
    wrong = next((take for take in takes if take.status != takes[0].status), None)
    if wrong is not None:  # a process that ended otherwise than the first
        found |= {"status": wrong.status, "reason": wrong.reason}
    found["measuring_s"] = math.fsum(take.measuring_s for take in takes)
    found["timing_s"] = math.fsum(take.timing_s for take in takes)
    if not timed:
        return found
    times = [low_quantile(take.slots) for take in timed]
    slots = [slot for take in timed for slot in take.slots]
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
        "null_s": _median([take.null_s for take in timed]),
        "load": _loads(timed, slots),
    }
    if found["status"] == "ok":
        logs = [take.log_ratio for take in timed if take.log_ratio is not None]
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


def _loads(takes: Sequence[Take], slots: Sequence[Slot]) -> dict[str, float]:
    """How busy the machine was, on average over the processes."""
    names = dict.fromkeys(name for take in takes for name in take.load)
    load = {n: statistics.fmean(take.load[n] for take in takes if n in take.load) for n in names}
    return {**load, "disturbed_share": sum(slot.disturbed for slot in slots) / len(slots)}
