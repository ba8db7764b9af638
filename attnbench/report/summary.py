"""Summary of records as rows: one for each contract, subject and case, over all processes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from attnbench.benchmark.records.record import Record, baseline_of


@dataclass(frozen=True)
class Row:
    """One subject at one case under one contract, as the terminal and the page show it.

    Times are medians over processes; the quartiles are over processes where there are at least
    three, else within the processes. Memory and error are the largest of all processes.

    Args:
        record: first record of the group, for the fields that all share.
        status: ``ok`` if any process was ok; otherwise the status of the first.
        processes: number of processes that were ok.
        ratio: time over the baseline's at the same case and contract, measured in turn with it;
            ``None`` if there is none.
        ratio_low, ratio_high: 95 % interval; for several runs, the range of all their intervals.
        gain: for a kernel, the time of its scoring function over its own.
        tokens_per_s: for a layer, tokens per second.
        roofline_share: the least time that the machine would need, over the measured time.
        ranked: place by ratio, or by time, among the ok rows of this case, from 1.
    """

    record: Record
    status: str
    reason: str
    processes: int
    time_s: float | None
    time_q1_s: float | None
    time_q3_s: float | None
    peak_bytes: int | None
    error_ratio: float | None
    first_call_s: float | None
    roofline_share: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    gain: float | None = None
    tokens_per_s: float | None = None
    ranked: int | None = None

    @property
    def group(self) -> tuple[str, str]:
        """The contract with the machine's device, and the case: compared rows must share these."""
        return f"{self.record.contract} on {self.record.where}", self.record.case


def _median(values: Iterable[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.median(numbers) if numbers else None


def _origin(record: Record) -> tuple[str, object, object]:
    """The commit, processor and cores, which all records of a row must share."""
    return record.commit, record.machine.get("processor"), record.machine.get("cores")


def _row(records: Sequence[Record]) -> Row:
    origin = _origin(max(records, key=lambda record: record.created))
    records = [record for record in records if _origin(record) == origin]
    runs = [r for r in records if r.status == "ok" and r.time_s is not None]
    group = runs or list(records)
    times = [time for r in runs for time in r.times_s]
    if len(times) >= 3:
        low, high = statistics.quantiles(times, n=4, method="inclusive")[::2]
        quartiles: tuple[float | None, float | None] = low, high
    else:
        quartiles = _median(r.time_q1_s for r in runs), _median(r.time_q3_s for r in runs)
    peak = max((r.peak_bytes for r in group if r.peak_bytes is not None), default=None)
    return Row(
        record=group[0],
        status=group[0].status,
        reason=group[0].reason,
        processes=len(times),
        time_s=_median(r.time_s for r in runs),
        time_q1_s=quartiles[0],
        time_q3_s=quartiles[1],
        peak_bytes=peak,
        error_ratio=max((r.error_ratio for r in group if r.error_ratio is not None), default=None),
        first_call_s=_median(r.first_call_s for r in group),
        roofline_share=_median(r.roofline_share for r in runs),
        ratio=_median(r.ratio for r in runs),
        ratio_low=min((r.ratio_low for r in runs if r.ratio_low is not None), default=None),
        ratio_high=max((r.ratio_high for r in runs if r.ratio_high is not None), default=None),
        gain=_median(r.gain for r in runs),
        tokens_per_s=_median(r.tokens_per_s for r in runs),
    )


def rows(records: Iterable[Record]) -> list[Row]:
    """One row per contract, device of a machine, case and subject, with ratios and places.

    With several commits or machines, a row shows only the newest, since a median over both would
    describe neither.
    """
    groups: dict[tuple[str, str, str, str], list[Record]] = {}
    for record in records:
        key = (record.contract, record.where, record.case, record.subject)
        groups.setdefault(key, []).append(record)
    rows_by_group: dict[tuple[str, str], list[Row]] = {}
    for group in groups.values():
        row = _row(group)
        rows_by_group.setdefault(row.group, []).append(row)
    return [row for group in rows_by_group.values() for row in _rank(group)]


def _rank(group: list[Row]) -> list[Row]:
    contenders = sorted(
        (row for row in group if row.time_s is not None),
        key=lambda row: (row.ratio or math.inf, row.time_s or 0.0),
    )
    places = {row.record.subject: place for place, row in enumerate(contenders, 1)}
    result = [replace(row, ranked=places.get(row.record.subject)) for row in group]
    return sorted(result, key=lambda row: row.ranked or math.inf)


@dataclass(frozen=True)
class Curve:
    """The times of one subject over increasing S, all else equal; L = S unless a layer decodes.

    Args:
        subject: address of the subject.
        points: pairs of length and time in seconds, by length.
        baseline: the same for the baseline.
        lengths: all recorded lengths of any subject, with or without a valid time.
        slope: slope of the logarithms, by least squares; 2 means four times the time at twice the
            length.
    """

    subject: str
    points: tuple[tuple[int, float], ...]
    baseline: tuple[tuple[int, float], ...]
    lengths: tuple[int, ...]
    slope: float


def slope(points: Sequence[tuple[int, float]]) -> float:
    """The slope of log time over log length, by least squares."""
    x = [math.log(length) for length, _ in points]
    y = [math.log(time) for _, time in points]
    return statistics.linear_regression(x, y).slope


def curves(table: Iterable[Row]) -> dict[str, list[Curve]]:
    """Curves of subjects with at least three lengths, by a title with the fixed parameters."""
    families: dict[str, dict[str, dict[int, float]]] = {}
    lengths_by_title: dict[str, set[int]] = {}
    baselines: dict[str, str] = {}
    for row in table:
        record = row.record
        has_one_length = record.q_len == record.kv_len or record.direction == "decode"
        if not has_one_length or record.inputs is not None:
            continue
        lead = "×".join(map(str, record.lead)) or "1"
        title = (
            f"{record.dtype}, mask {record.mask}, lead {lead}, E {record.query_size}, "
            f"on {record.where}: {record.contract}"
        )
        baselines[title] = baseline_of(record.kind)
        lengths_by_title.setdefault(title, set()).add(record.kv_len)
        if row.time_s is not None:
            lengths = families.setdefault(title, {}).setdefault(record.subject, {})
            lengths[record.kv_len] = row.time_s
    result = {}
    for title, subjects in families.items():
        base = tuple(sorted(subjects.get(baselines[title], {}).items()))
        points = {name: tuple(sorted(p.items())) for name, p in subjects.items() if len(p) >= 3}
        if points:
            sizes = tuple(sorted(lengths_by_title[title]))
            result[title] = [Curve(n, p, base, sizes, slope(p)) for n, p in sorted(points.items())]
    return result


def pareto(group: Sequence[Row]) -> set[str]:
    """The subjects that no other in the group beats in time, memory and error at once."""

    def costs(row: Row) -> tuple[float, float, float]:
        return (row.time_s or 0.0, float(row.peak_bytes or 0), row.error_ratio or 0.0)

    candidates = [row for row in group if row.time_s is not None and row.peak_bytes is not None]
    return {
        row.record.subject
        for row in candidates
        if not any(
            all(a <= b for a, b in zip(costs(o), costs(row), strict=True))
            and costs(o) != costs(row)
            for o in candidates
        )
    }


def machines(records: Iterable[Record]) -> list[Mapping[str, object]]:
    """Each machine once, with its description, versions, commits and runs."""
    entries: dict[str, dict[str, object]] = {}
    for record in records:
        key = f"{sorted(record.machine.items())}{record.device_name}"
        entry = entries.setdefault(
            key,
            {
                "machine": dict(record.machine),
                "device_name": record.device_name,
                "versions": {},
                "runs": {},
                "commits": {},
                "sentinels": {},
            },
        )
        for name, value in (
            ("runs", {record.run: None}),
            ("commits", {record.commit: None}),
            ("versions", record.versions),
            ("sentinels", record.sentinel),
        ):
            table = entry[name]
            assert isinstance(table, dict)
            table.update(value)
    return list(entries.values())
