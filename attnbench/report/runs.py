"""A grid of ratios for each run, newest first, with kernels below their scoring function."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attnbench.benchmark.grid import Line, grids
from attnbench.benchmark.records.record import Record
from attnbench.report.summary import Row, rows


@dataclass(frozen=True)
class RunGrid:
    """One grid of a run."""

    titles: tuple[str, ...]
    lines: tuple[tuple[Line, tuple[Row | None, ...]], ...]


@dataclass(frozen=True)
class Run:
    """A run on one machine."""

    newest: Record
    grids: tuple[RunGrid, ...]


def runs_of(records: Sequence[Record]) -> list[Run]:
    """The runs of records, separated by machine and commit, newest first."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        key = (record.run, record.machine_name, record.commit)
        groups.setdefault(key, []).append(record)
    runs = [_run(group) for group in groups.values()]
    return sorted(runs, key=lambda run: run.newest.created, reverse=True)


def _run(records: Sequence[Record]) -> Run:
    newest = max(records, key=lambda record: record.created)
    cells = {(r.record.subject, r.record.device, r.record.case): r for r in rows(records)}
    run_grids = [
        RunGrid(
            titles=grid.titles,
            lines=tuple(
                (line, tuple(cells.get((line.subject, *column)) for column in grid.columns))
                for line in grid.lines
            ),
        )
        for grid in grids(records)
    ]
    return Run(newest, tuple(run_grids))
