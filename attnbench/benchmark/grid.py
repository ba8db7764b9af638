"""Grids: a run at a glance, with a line for each subject and a column for each case.

Kernels are listed below the scoring function that they compute; mechanisms come last. Layers have
their own grid. This module does not import torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.benchmark.contract import DIRECTIONS
from attnbench.benchmark.records.record import BASELINE, LAYER_BASELINE, Record

OVERHEAD = 0.2
"""Overhead is marked from this share of a call's time on."""

Column = tuple[str, str]
"""Device and case."""


@dataclass(frozen=True)
class Line:
    """A line of the grid.

    Args:
        subject: address of the subject.
        kind: ``scoring``, ``kernel``, ``mechanism`` or ``layer``.
        name: displayed name; a kernel below its scoring function omits the function's name.
        beneath: whether this is a kernel listed below its scoring function.
        cells: records by column; columns without a record are missing.
    """

    subject: str
    kind: str
    name: str
    beneath: bool
    cells: tuple[Record | None, ...]


@dataclass(frozen=True)
class Grid:
    """A table of records.

    Args:
        columns: device and case of each column.
        titles: titles of the columns; a title may have several lines.
        lines: the lines in display order.
    """

    columns: tuple[Column, ...]
    titles: tuple[str, ...]
    lines: tuple[Line, ...]


def grids(records: Iterable[Record]) -> list[Grid]:
    """Make the grids of a run: one of attention and one of layers, as far as it has records."""
    families: dict[bool, list[Record]] = {False: [], True: []}
    for record in records:
        families[record.kind == "layer"].append(record)
    return [_grid(family) for family in families.values() if family]


def _grid(records: Sequence[Record]) -> Grid:
    examples = {(record.device, record.case): record for record in records}
    columns = sorted(examples, key=lambda column: _place(examples[column]))
    cells = {(record.subject, record.device, record.case): record for record in records}
    kinds = {record.subject: record.kind for record in records}
    lines = [
        Line(
            subject=subject,
            kind=kinds[subject],
            name=subject.rpartition("/")[2] if beneath else subject,
            beneath=beneath,
            cells=tuple(cells.get((subject, *column)) for column in columns),
        )
        for subject, beneath in _ordered(kinds)
    ]
    titles = tuple(_title(examples[column], list(examples.values())) for column in columns)
    return Grid(tuple(columns), titles, tuple(lines))


def scoring_address(kernel: str) -> str:
    """The address of a kernel's scoring function, with the options kept."""
    name, bracket, options = kernel.partition("(")
    return name.rpartition("/")[0] + bracket + options


def _ordered(kinds: dict[str, str]) -> list[tuple[str, bool]]:
    """The subjects in display order, and whether each is listed below its scoring function."""
    lines: list[tuple[str, bool]] = []
    scorings = [name for name, kind in kinds.items() if kind == "scoring"]
    for name in sorted(scorings, key=lambda name: (name != BASELINE, name)):
        lines.append((name, False))
        kernels = [n for n, k in kinds.items() if k == "kernel" and scoring_address(n) == name]
        lines += [(kernel, True) for kernel in sorted(kernels)]
    names = {name for name, _ in lines}
    rest = sorted(
        (name for name in kinds if name not in names),
        key=lambda name: (name != LAYER_BASELINE, name),
    )
    return lines + [
        (n, False) for kind in ("kernel", "mechanism", "layer") for n in rest if kinds[n] == kind
    ]


def _place(record: Record) -> tuple[Any, ...]:
    return (
        record.device,
        record.dtype,
        natural(record.workload),
        record.mask != "none",
        record.mask,
        list(DIRECTIONS).index(record.direction),
    )


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A sort key that orders numbers in a text by size."""
    parts = re.split(r"(\d+)", name)
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in parts]


def _title(record: Record, others: Sequence[Record]) -> str:
    """A title that distinguishes a column from the others."""
    parts = [record.workload or record.case]
    if record.kind == "layer":
        parts = [record.direction, *parts[0].split()]
    for name, norm in (("mask", "none"), ("direction", "forward"), ("dtype", ""), ("device", "")):
        value = getattr(record, name)
        if name == "direction" and record.kind == "layer":
            continue
        if len({getattr(other, name) for other in others}) > 1 and value != norm:
            parts.append(str(value))
    return "\n".join(parts) if record.kind == "layer" else ", ".join(parts)


def half_width(low: float | None, high: float | None) -> float | None:
    """Half the width of a ratio's interval, as a share of the ratio; ``None`` if it is unknown.

    Args:
        low, high: the ends of the interval; ``None``, or 0 and infinity, if it is unknown.
    """
    return math.expm1(math.log(high / low) / 2) if low and high else None


def overhead_share(record: Record) -> float | None:
    """The share of a call's time that is spent before the kernel starts to compute."""
    if not record.null_s or not record.time_s or record.kind in ("mechanism", "layer"):
        return None
    return min(1.0, record.null_s / record.time_s)
