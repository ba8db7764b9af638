"""The machines of a cluster side by side, each with its own times and ratios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.benchmark.records.record import Record
from attnbench.report.summary import Row


@dataclass(frozen=True)
class SideBySide:
    """A table with one column per machine."""

    machines: tuple[tuple[str, str], ...]
    lines: tuple[tuple[Record, tuple[Row | None, ...]], ...]


def side_by_side(table: Sequence[Row]) -> SideBySide | None:
    """The rows of named machines side by side; ``None`` if there are fewer than two machines."""
    rows = [row for row in table if row.record.machine_name]
    keys = [(row.record.machine_name, row.record.device_name) for row in rows]
    machines = tuple(sorted({pair for pair in keys if pair[1]}))
    if len(machines) < 2:
        return None
    cells: dict[tuple[str, str, str], dict[tuple[str, str], Row]] = {}
    for row, machine in zip(rows, keys, strict=True):
        record = row.record
        cells.setdefault((record.contract, record.case, record.subject), {})[machine] = row
    lines = [
        (next(iter(group.values())).record, tuple(group.get(machine) for machine in machines))
        for group in cells.values()
    ]
    return SideBySide(machines, tuple(line for line in lines if any(line[1])))


def ratios_of(subject: str, table: Sequence[Row]) -> list[tuple[str, float, float, int]]:
    """The lowest and highest ratio of a subject and their number, for each machine separately."""
    ratios: dict[str, list[float]] = {}
    for row in table:
        if row.record.subject == subject and row.ratio is not None:
            ratios.setdefault(row.record.machine_name, []).append(row.ratio)
    return [(name, min(group), max(group), len(group)) for name, group in sorted(ratios.items())]
