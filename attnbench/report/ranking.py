"""Recorded rows as terminal and page show them: the newest of each, ranked, and over lengths."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter

from attnbench.benchmark.records import Record

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
            record = replace(record, time_s=None, times_s=(), ratio=None)
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


def families(table: Iterable[Record]) -> dict[str, dict[str, list[Record]]]:
    """The rows with a time over increasing S, all else equal, by a title of that and by subject.

    L = S unless a layer decodes. A subject in a family has two lengths or more.
    """
    found: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for row in table:
        is_square = row.q_len == row.kv_len or row.direction == "decode"
        if is_square and row.inputs is None and row.time_s is not None:
            lead = "×".join(map(str, row.lead)) or "1"
            fixed = f"{row.dtype}, mask {row.mask}, lead {lead}, E {row.query_size}"
            title = f"{fixed}, on {row.device_name}: {row.contract}"
            found[title][row.subject].append(row)
    longer = {
        title: {
            name: sorted(own, key=attrgetter("kv_len"))
            for name, own in sorted(family.items())
            if slope(own) is not None
        }
        for title, family in found.items()
    }
    return {title: family for title, family in longer.items() if family}


def slope(own: Sequence[Record]) -> float | None:
    """Slope of log time over log length: 2 means four times the time at twice the length.

    ``None`` of a single length.
    """
    if len({row.kv_len for row in own}) < 2:
        return None
    x = [math.log(row.kv_len) for row in own]
    y = [math.log(row.time_s or math.nan) for row in own]
    return statistics.linear_regression(x, y).slope


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
