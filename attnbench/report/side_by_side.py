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
    named = [row for row in table if row.record.machine_name]
    known = [(row.record.machine_name, row.record.device_name) for row in named]
    machines = tuple(sorted({pair for pair in known if pair[1]}))
    if len(machines) < 2:
        return None
    cells: dict[tuple[str, str, str], dict[tuple[str, str], Row]] = {}
    for row, machine in zip(named, known, strict=True):
        record = row.record
        cells.setdefault((record.contract, record.case, record.subject), {})[machine] = row
    lines = [
        (next(iter(found.values())).record, tuple(found.get(machine) for machine in machines))
        for found in cells.values()
    ]
    return SideBySide(machines, tuple(line for line in lines if any(line[1])))


def ratios_of(subject: str, table: Sequence[Row]) -> list[tuple[str, float, float, int]]:
    """The lowest and highest ratio of a subject and their number, for each machine separately."""
    found: dict[str, list[float]] = {}
    for row in table:
        if row.record.subject == subject and row.ratio is not None:
            found.setdefault(row.record.machine_name, []).append(row.ratio)
    return [(name, min(some), max(some), len(some)) for name, some in sorted(found.items())]
