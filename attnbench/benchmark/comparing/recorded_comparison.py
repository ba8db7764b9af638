"""Compare two sets of records: find the rows that they share, and give a verdict on each.

Rows measured on different processors or under different contracts are never compared, nor is a run
compared with itself.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from attnbench.benchmark.comparing.verdict import (
    MIN_PROCESSES,
    RUNS_MARGIN,
    Sides,
    Verdict,
    judge_runs,
    taken_in_turn,
)
from attnbench.benchmark.records.record import Record
from attnbench.benchmark.records.store import read_all, run_path
from attnbench.errors import RecordError, nearest

Key = tuple[str, str, str]
"""The contract, subject and case that identify a row of a comparison."""


@dataclass(frozen=True)
class Compared:
    """A row that at least one side measured."""

    example: Record
    sides: Sides
    verdict: Verdict


@dataclass(frozen=True)
class ComparedRuns:
    """The result of comparing two sets of records."""

    rows: list[Compared]
    notes: list[str] = field(default_factory=list)


def read_side(text: str, folder: Path) -> list[Record]:
    """Read the records of one side of a comparison.

    Raises:
        RecordError: there is no such run, it has no usable measurement, or a file is damaged, not
            attnbench's, or of another version.
    """
    path = Path(text)
    if not path.exists() and run_path(folder, text).exists():
        path = run_path(folder, text)
    if not path.exists():
        runs = [file.stem for file in folder.glob("*.jsonl")]
        raise RecordError(
            f"{text!r} is not a file or folder of records, nor the id of a run in {folder}. "
            f"{nearest(text, runs)}"
        )
    records = read_all([path])
    if not any(record.status == "ok" for record in records):
        counts = Counter(record.status for record in records)
        summary = ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing"
        raise RecordError(f"{text} has no measurement to compare: it holds {summary}.")
    return records


def compare(
    a: Sequence[Record],
    b: Sequence[Record],
    *,
    margin: float = RUNS_MARGIN,
) -> ComparedRuns:
    """Decide for each row whether B is faster or slower than A.

    Raises:
        RecordError: the sides come from different machines, share no row or contract, or both
            contain the same run.
    """
    _refuse_shared_runs(a, b)
    _refuse_other_machine(_one_machine("A", a), _one_machine("B", b))
    sides = _by_row(a), _by_row(b)
    keys = [key for key in sides[0] if key in sides[1]]
    if not keys:
        _refuse_nothing_shared(*sides)
    examples = {record.key: record for record in (*b, *a)}
    times = [_times(sides[0][key], sides[1][key]) for key in keys]
    verdicts = judge_runs(times, margin=margin)
    rows = [Compared(examples[k], t, v) for k, t, v in zip(keys, times, verdicts, strict=True)]
    for key, example in examples.items():
        if (key in sides[0]) != (key in sides[1]):
            rows.append(_one_sided(example, a, b))
    return ComparedRuns(rows, list(_notes(a, b, times)))


def _times(a: Sequence[Record], b: Sequence[Record]) -> Sides:
    """The evidence on a row: whole runs if enough of both sides alternated, else processes.

    Processes of one run share that run's bias; only alternating runs average it out.
    """
    runs = [_by_run(side) for side in (a, b)]
    starts = [
        [min(datetime.fromisoformat(r.created).timestamp() for r in run) for run in side.values()]
        for side in runs
    ]
    in_turn = taken_in_turn(*starts)
    count = min(len(side) for side in runs)
    if in_turn and count >= MIN_PROCESSES:
        means = [
            tuple(
                statistics.geometric_mean([t for r in run for t in r.times_s])
                for run in side.values()
            )
            for side in runs
        ]
        return Sides(means[0], means[1])
    times = [tuple(t for r in side for t in r.times_s) for side in (a, b)]
    return Sides(times[0], times[1], alternated=False, runs=count if in_turn else 1)


def _by_run(records: Iterable[Record]) -> dict[str, list[Record]]:
    runs: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        runs[record.run].append(record)
    return runs


def _by_row(records: Iterable[Record]) -> dict[Key, list[Record]]:
    rows: dict[Key, list[Record]] = defaultdict(list)
    for record in records:
        if record.status == "ok" and record.time_s:
            rows[record.key].append(record)
    return dict(rows)


def _one_sided(example: Record, a: Sequence[Record], b: Sequence[Record]) -> Compared:
    """A row that only one side measured: ambiguous, with the reason."""
    sides = [[r for r in side if r.key == example.key] for side in (a, b)]
    reasons = []
    for name, records in zip("AB", sides, strict=True):
        counts = Counter(r.status for r in records)
        summary = ", ".join(f"{count} {status}" for status, count in counts.items())
        reasons.append(f"{name}: {summary or 'not measured'}")
    a_s, b_s = (tuple(r.time_s for r in side if r.status == "ok" and r.time_s) for side in sides)
    nan = math.nan
    verdict = Verdict("ambiguous", nan, nan, nan, nan, reason="; ".join(reasons))
    return Compared(example, Sides(a_s, b_s, alternated=False), verdict)


_MACHINE_FIELDS = ("name", "processor", "cores")
"""Fields that identify a machine; not its node, new in every container, nor its updated system."""


def _machine(record: Record) -> dict[str, str]:
    device = {f"device {record.device}": record.device_name} if record.device_name else {}
    fields = {name: str(record.machine[name]) for name in _MACHINE_FIELDS if name in record.machine}
    return {**fields, **device}


def _one_machine(name: str, records: Sequence[Record]) -> dict[str, str]:
    """The identifying fields of the one machine that all records of a side come from."""
    machine: dict[str, str] = {}
    for record in records:
        for key, value in _machine(record).items():
            if machine.setdefault(key, value) != value:
                raise RecordError(
                    f"{name} has runs of several machines: {key} is {machine[key]} and {value}. "
                    "Name runs of one machine only."
                )
    return machine


def _refuse_other_machine(a: dict[str, str], b: dict[str, str]) -> None:
    keys = [key for key in a if key in b and a[key] != b[key]]
    if keys:
        lines = "\n".join(f"  {key}: {a[key]} and {b[key]}" for key in keys)
        raise RecordError(
            f"A and B were measured on different machines, and cannot be compared:\n{lines}\n"
            "Measure both on the same machine."
        )


def _refuse_shared_runs(a: Iterable[Record], b: Iterable[Record]) -> None:
    runs = {r.run for r in a} & {r.run for r in b}
    if runs:
        raise RecordError(
            f"the run {min(runs)} is in A and in B: nothing can be concluded from comparing a run "
            "with itself. Name other runs, or measure again."
        )


def _refuse_nothing_shared(a: dict[Key, list[Record]], b: dict[Key, list[Record]]) -> None:
    contracts = [sorted({key[0] for key in side}) for side in (a, b)]
    if not set(contracts[0]) & set(contracts[1]):
        raise RecordError(
            "A and B were measured under different contracts, and cannot be compared:\n"
            f"  A: {'; '.join(contracts[0])}\n  B: {'; '.join(contracts[1])}\n"
            "Measure one of them again with the options of the other."
        )
    subjects = [", ".join(sorted({key[1] for key in side})) for side in (a, b)]
    raise RecordError(
        "A and B have no subject measured at the same case:\n"
        f"  A: {subjects[0]}\n  B: {subjects[1]}\n"
        "Give both the same subjects and the same set of cases."
    )


def _notes(a: Sequence[Record], b: Sequence[Record], times: Sequence[Sides]) -> Iterable[str]:
    if not any(row.alternated for row in times):
        yield (
            "The intervals include the drift of this machine between runs. 'attnbench compare "
            "REVISION' measures both sides in turn and detects much smaller changes; so do five "
            "or more alternating runs of each side, recorded in two folders."
        )
    for name in ("node", "system"):
        yield from _changes(name, *({r.machine.get(name) for r in side} for side in (a, b)))
    for name in ("torch", "python"):
        yield from _changes(name, *({r.versions.get(name) for r in side} for side in (a, b)))
    count = sum(record.status == "unverified" for record in (*a, *b))
    if count:
        yield f"Records left out as unverified: {count}."


def _changes(name: str, a: set[str | None], b: set[str | None]) -> Iterable[str]:
    if a - {None} != b - {None}:
        values = [", ".join(sorted(str(v) for v in side - {None})) or "unknown" for side in (a, b)]
        yield f"{name} differs: {values[0]} in A, {values[1]} in B."
