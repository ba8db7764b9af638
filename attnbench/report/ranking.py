"""Summary of records as rows: one for each contract, subject and case, over all processes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from attnbench.benchmark.records import Record, baseline_of


@dataclass(frozen=True, kw_only=True)
class Row(Record):
    """One subject at one case under one contract, as the terminal and the page show it.

    It is the first record of a group, with the numbers of all. Times are medians over processes;
    the quartiles are over processes where there are at least three, else within the processes.
    Memory and error are the largest of all processes. Without an ok process there is no time.

    Args:
        processes: number of processes that were ok.
        ranked: place by ratio, or by time, among the ok rows of this case, from 1.
    """

    processes: int = 0
    ranked: int | None = None

    @property
    def group(self) -> tuple[str, str]:
        """The contract with the machine's device, and the case: compared rows must share these."""
        return f"{self.contract} on {self.where}", self.case


def _numbers(records: Iterable[Record], name: str) -> list[float]:
    values = (getattr(record, name) for record in records)
    return [value for value in values if value is not None]


def _median(records: Iterable[Record], name: str) -> float | None:
    numbers = _numbers(records, name)
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
        quartiles = _median(runs, "time_q1_s"), _median(runs, "time_q3_s")
    medians = ("time_s", "ratio", "gain", "tokens_per_s")
    merged = {
        "processes": len(times),
        "time_q1_s": quartiles[0],
        "time_q3_s": quartiles[1],
        "first_call_s": _median(group, "first_call_s"),
        "ratio_low": min(_numbers(runs, "ratio_low"), default=None),
        "ratio_high": max(_numbers(runs, "ratio_high"), default=None),
        **{
            name: max(_numbers(group, name), default=None) for name in ("peak_bytes", "error_ratio")
        },
        **{name: _median(runs, name) for name in medians},
    }
    return Row(**{**vars(group[0]), **merged})


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
    places = {row.subject: place for place, row in enumerate(contenders, 1)}
    result = [replace(row, ranked=places.get(row.subject)) for row in group]
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
        bars: length, and the quartiles of the time.
    """

    subject: str
    points: tuple[tuple[int, float], ...]
    baseline: tuple[tuple[int, float], ...]
    lengths: tuple[int, ...]
    slope: float
    bars: tuple[tuple[int, float, float], ...]


def slope(points: Sequence[tuple[int, float]]) -> float:
    """The slope of log time over log length, by least squares."""
    x = [math.log(length) for length, _ in points]
    y = [math.log(time) for _, time in points]
    return statistics.linear_regression(x, y).slope


def curves(table: Iterable[Row]) -> dict[str, list[Curve]]:
    """Curves of subjects with at least two lengths, by a title with the fixed parameters."""
    families: dict[str, dict[str, dict[int, tuple[float, float, float]]]] = {}
    lengths_by_title: dict[str, set[int]] = {}
    baselines: dict[str, str] = {}
    for row in table:
        has_one_length = row.q_len == row.kv_len or row.direction == "decode"
        if not has_one_length or row.inputs is not None:
            continue
        lead = "×".join(map(str, row.lead)) or "1"
        title = (
            f"{row.dtype}, mask {row.mask}, lead {lead}, E {row.query_size}, "
            f"on {row.where}: {row.contract}"
        )
        baselines[title] = baseline_of(row.kind)
        lengths_by_title.setdefault(title, set()).add(row.kv_len)
        if row.time_s is not None:
            lengths = families.setdefault(title, {}).setdefault(row.subject, {})
            quartiles = row.time_q1_s or row.time_s, row.time_q3_s or row.time_s
            lengths[row.kv_len] = row.time_s, *quartiles
    result: dict[str, list[Curve]] = {}
    for title, subjects in families.items():
        sizes = tuple(sorted(lengths_by_title[title]))
        base = tuple((n, t[0]) for n, t in sorted(subjects.get(baselines[title], {}).items()))
        for name, times in sorted(subjects.items()):
            if len(times) > 1:
                points = tuple((n, t[0]) for n, t in sorted(times.items()))
                bars = tuple((n, low, high) for n, (_, low, high) in times.items())
                curve = Curve(name, points, base, sizes, slope(points), bars)
                result.setdefault(title, []).append(curve)
    return result


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


@dataclass(frozen=True)
class SideBySide:
    """The machines of a cluster side by side, each with its own times and ratios."""

    machines: tuple[tuple[str, str], ...]
    lines: tuple[tuple[Row, tuple[Row | None, ...]], ...]


def side_by_side(table: Sequence[Row]) -> SideBySide | None:
    """The rows of named machines side by side; ``None`` if there are fewer than two machines."""
    cells: dict[tuple[str, str, str], dict[tuple[str, str], Row]] = {}
    for row in table:
        if row.machine_name and row.device_name:
            machine = row.machine_name, row.device_name
            cells.setdefault((row.contract, row.case, row.subject), {})[machine] = row
    names = tuple(sorted({machine for group in cells.values() for machine in group}))
    if len(names) < 2:
        return None
    lines = [(next(iter(group.values())), tuple(map(group.get, names))) for group in cells.values()]
    return SideBySide(names, tuple(lines))
