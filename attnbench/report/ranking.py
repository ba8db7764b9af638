"""Recorded rows as the terminal and the page show them: the newest of each, ranked, and curves."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter

from attnbench.benchmark.records import Record, baseline_of

group_of = attrgetter("contract", "device_name", "case")
"""The contract, device and case of a record; only rows that share these are compared."""


def rows(records: Iterable[Record]) -> list[Record]:
    """One record per contract, device, case and subject: the newest, since none pools two runs.

    The rows of a case follow each other: ranked ones first, by their ratio or else by their time,
    then those that are not ok, which have neither.
    """
    newest: dict[tuple[str, ...], Record] = {}
    for record in sorted(records, key=lambda record: record.created):
        if record.status != "ok":
            record = replace(record, time_s=None, time_q1_s=None, time_q3_s=None, ratio=None)
        newest[(*group_of(record), record.subject)] = record
    groups = defaultdict(list)
    for record in newest.values():
        groups[group_of(record)].append(record)
    return [record for group in groups.values() for record in sorted(group, key=_rank)]


def _rank(record: Record) -> tuple[bool, float, float]:
    return record.time_s is None, record.ratio or math.inf, record.time_s or 0.0


def grouped(table: Iterable[Record]) -> list[list[Record]]:
    """The rows of each contract, device and case."""
    return [list(group) for _, group in groupby(table, key=group_of)]


@dataclass(frozen=True)
class Curve:
    """The times of one subject over increasing S, all else equal; L = S unless a layer decodes.

    Args:
        subject: address of the subject.
        points: pairs of length and time in seconds, by length.
        baseline: the same for the baseline.
        lengths: all recorded lengths of any subject, with or without a valid time.
        bars: length, and the quartiles of the time.
    """

    subject: str
    points: tuple[tuple[int, float], ...]
    baseline: tuple[tuple[int, float], ...]
    lengths: tuple[int, ...]
    bars: tuple[tuple[int, float, float], ...]

    @property
    def slope(self) -> float:
        """Slope of log time over log length: 2 means four times the time at twice the length."""
        x, y = zip(*((math.log(n), math.log(time)) for n, time in self.points), strict=True)
        return statistics.linear_regression(x, y).slope


def curves(table: Iterable[Record]) -> dict[str, list[Curve]]:
    """Curves of subjects with at least two lengths, by a title with the fixed parameters."""
    families: dict[str, list[Record]] = defaultdict(list)
    for row in table:
        if (row.q_len == row.kv_len or row.direction == "decode") and row.inputs is None:
            lead = "×".join(map(str, row.lead)) or "1"
            fixed = f"{row.dtype}, mask {row.mask}, lead {lead}, E {row.query_size}"
            families[f"{fixed}, on {row.device_name}: {row.contract}"].append(row)
    result: dict[str, list[Curve]] = {}
    for title, family in families.items():
        lengths = tuple(sorted({row.kv_len for row in family}))
        by_subject: dict[str, list[Record]] = defaultdict(list)
        for row in sorted(family, key=lambda row: (row.subject, row.kv_len)):
            if row.time_s is not None:
                by_subject[row.subject].append(row)
        baseline = _points(by_subject.get(baseline_of(family[0].kind), []))
        found = [
            Curve(name, _points(own), baseline, lengths, tuple(map(_bar, own)))
            for name, own in by_subject.items()
            if len({row.kv_len for row in own}) > 1
        ]
        if found:
            result[title] = found
    return result


def _points(rows: Iterable[Record]) -> tuple[tuple[int, float], ...]:
    return tuple((row.kv_len, row.time_s or 0.0) for row in rows)


def _bar(row: Record) -> tuple[int, float, float]:
    time_s = row.time_s or 0.0
    return row.kv_len, row.time_q1_s or time_s, row.time_q3_s or time_s


def machines(records: Iterable[Record]) -> list[dict[str, object]]:
    """Each machine once, with its description, versions, commits and runs."""
    entries: dict[str, dict[str, dict[str, object]]] = {}
    for record in records:
        entry = entries.setdefault(
            f"{sorted(record.machine.items())}{record.device_name}", defaultdict(dict)
        )
        entry["machine"].update({"computed on": record.device_name, **record.machine})
        entry["versions"].update(record.versions)
        entry["commits"][record.commit] = None
        entry["runs"][record.run] = None
        entry["sentinels"].update(record.sentinel)
    return [{**entry} for entry in entries.values()]
