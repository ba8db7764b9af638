"""Comparing two sets of records: which rows they share, and what may be said of each.

Rows of other processors or contracts are never set against each other, and neither is a run
against itself.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from attnbench.benchmark.comparing.verdict_of_runs import (
    MARGIN,
    MIN_PROCESSES,
    Pair,
    Verdict,
    taken_in_turn,
    verdicts,
)
from attnbench.benchmark.records.record import Record
from attnbench.benchmark.records.store import read, read_folder, run_path
from attnbench.errors import RecordError, nearest

__all__ = ["Comparison", "Key", "compare", "key_of", "read_side"]


Key = tuple[str, str, str]
"""Contract, subject and case: what has one row in a comparison."""


def key_of(record: Record) -> Key:
    """The row that a record belongs to."""
    return record.contract, record.subject, record.case


@dataclass(frozen=True)
class Comparison:
    """What came of comparing two sets of records.

    Args:
        verdicts: one for each case that both sides measured, and one for each that only one did.
        examples: a record of each row, for its sizes and names.
        notes: what a reader should know beside the table.
    """

    verdicts: list[Verdict]
    examples: dict[Key, Record]
    notes: list[str] = field(default_factory=list)


def read_side(text: str, folder: Path) -> list[Record]:
    """The records that one side of a comparison names: a file, a folder, or the id of a run.

    Args:
        text: what was given.
        folder: where a run is looked for by its id.

    Raises:
        RecordError: there is no such run, or a file is damaged, foreign, older or newer.
    """
    path = Path(text)
    if not path.exists() and run_path(folder, text).exists():
        path = run_path(folder, text)
    if not path.exists():
        runs = [found.stem for found in folder.glob("*.jsonl")]
        raise RecordError(
            f"{text!r} is neither a file nor a folder of records, nor a run in {folder}. "
            f"{nearest(text, runs)}"
        )
    records = read_folder(path) if path.is_dir() else list(read(path))
    if not any(record.status == "ok" for record in records):
        counts = Counter(record.status for record in records)
        held = ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing"
        raise RecordError(f"{text} has no measurement to compare: it holds {held}.")
    return records


def compare(
    a: Sequence[Record],
    b: Sequence[Record],
    *,
    margin: float = MARGIN,
) -> Comparison:
    """Say of each case whether B is faster or slower than A.

    Args:
        a, b: the two sides.
        margin: a change smaller than this share is called same, if that much is sure.

    Raises:
        RecordError: other machines, no contract in common, or a run on both sides.
    """
    _refuse_shared_runs("A", a, "B", b)
    _refuse_other_machine(_one_machine("A", a), _one_machine("B", b))
    sides = _by_row(a), _by_row(b)
    shared = [key for key in sides[0] if key in sides[1]]
    if not shared:
        _refuse_nothing_shared(*sides)
    pairs = [_pair(key, sides[0][key], sides[1][key]) for key in shared]
    found = verdicts(pairs, margin=margin)
    examples = {key_of(record): record for record in (*b, *a)}
    found += [_one_sided(key, a, b) for key in examples if key not in shared]
    ranked = {key for side in sides for key in side}
    found = [v for v in found if v.key in ranked]
    return Comparison(found, examples, list(_notes(a, b, pairs)))


def _pair(key: Key, a: Sequence[Record], b: Sequence[Record]) -> Pair:
    """The evidence on a row: processes, or whole runs where enough runs of both sides took turns.

    Processes of one run share what that run was off by; only runs in turn average it out.
    """
    runs = [_by_run(side) for side in (a, b)]
    starts = [
        [min(datetime.fromisoformat(r.created).timestamp() for r in run) for run in side.values()]
        for side in runs
    ]
    in_turn = taken_in_turn(*starts)
    fewest = min(len(side) for side in runs)
    if in_turn and fewest >= MIN_PROCESSES:
        means = [tuple(_mean_s(run) for run in side.values()) for side in runs]
        return Pair(key, means[0], means[1])
    times = [tuple(t for r in side for t in r.process_times_s) for side in (a, b)]
    return Pair(key, times[0], times[1], alternated=False, runs=fewest if in_turn else 1)


def _by_run(records: Iterable[Record]) -> dict[str, list[Record]]:
    runs: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        runs[record.run].append(record)
    return runs


def _mean_s(records: Iterable[Record]) -> float:
    return statistics.geometric_mean([t for r in records for t in r.process_times_s])


def _by_row(records: Iterable[Record]) -> dict[Key, list[Record]]:
    rows: dict[Key, list[Record]] = defaultdict(list)
    for record in records:
        if record.status == "ok" and record.time_s:
            rows[key_of(record)].append(record)
    return dict(rows)


def _one_sided(key: Key, a: Sequence[Record], b: Sequence[Record]) -> Verdict:
    """A case that only one side has numbers for: nothing may be said, but it is named."""
    sides = {"A": [r for r in a if key_of(r) == key], "B": [r for r in b if key_of(r) == key]}
    told = []
    for name, records in sides.items():
        counts = Counter(r.status for r in records)
        held = ", ".join(f"{count} {status}" for status, count in counts.items())
        told.append(f"{name}: {held or 'not measured'}")
    times = {n: [r.time_s for r in rs if r.status == "ok" and r.time_s] for n, rs in sides.items()}
    nan = float("nan")
    return Verdict(
        key=key,
        verdict="ambiguous",
        effect=nan,
        low=nan,
        high=nan,
        visible=nan,
        a_s=min(times["A"], default=nan),
        b_s=min(times["B"], default=nan),
        processes=(len(times["A"]), len(times["B"])),
        alternated=False,
        reason="; ".join(told),
    )


_SAME = ("name", "processor", "cores")
"""What makes a machine: every container has a name of its own, and systems are updated."""


def _machine(record: Record) -> dict[str, str]:
    device = {f"device {record.device}": record.device_name} if record.device_name else {}
    known = {name: str(record.machine[name]) for name in _SAME if name in record.machine}
    return {**known, **device}


def _one_machine(name: str, records: Sequence[Record]) -> dict[str, str]:
    """What is known of the machine that all records of a side come from."""
    machine: dict[str, str] = {}
    for record in records:
        for key, value in _machine(record).items():
            if machine.setdefault(key, value) != value:
                raise RecordError(
                    f"{name} holds runs of several machines: {key} is {machine[key]} and {value}. "
                    "Name the runs of one of them."
                )
    return machine


def _refuse_other_machine(a: dict[str, str], b: dict[str, str]) -> None:
    other = [key for key in a if key in b and a[key] != b[key]]
    if other:
        lines = "\n".join(f"  {key}: {a[key]} and {b[key]}" for key in other)
        raise RecordError(
            f"A and B were measured on different machines, and cannot be compared:\n{lines}\n"
            "Measure both on one."
        )


def _refuse_shared_runs(name_a: str, a: Iterable[Record], name_b: str, b: Iterable[Record]) -> None:
    shared = {r.run for r in a} & {r.run for r in b}
    if shared:
        raise RecordError(
            f"the run {min(shared)} is in {name_a} and in {name_b}: nothing can be concluded from "
            "comparing a run with itself. Name other runs, or measure again."
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


def _notes(a: Sequence[Record], b: Sequence[Record], pairs: Sequence[Pair]) -> Iterable[str]:
    if pairs and not any(pair.alternated for pair in pairs):
        yield (
            "The drift of this machine between runs is part of the intervals. 'attnbench compare "
            "REVISION' measures both sides in turn, and sees far less; so do five runs or more of "
            "each side, in turn and in two folders."
        )
    for name in ("node", "system"):
        yield from _differing(name, *({r.machine.get(name) for r in side} for side in (a, b)))
    for name in ("torch", "python"):
        yield from _differing(name, *({r.versions.get(name) for r in side} for side in (a, b)))
    left_out = Counter(r.status for r in (*a, *b) if r.status in ("void", "unverified"))
    for status, count in left_out.items():
        yield f"{count} {status} records are left out."


def _differing(name: str, a: set[str | None], b: set[str | None]) -> Iterable[str]:
    if a - {None} != b - {None}:
        told = [", ".join(sorted(str(v) for v in side - {None})) or "unknown" for side in (a, b)]
        yield f"{name} differs: {told[0]} in A, {told[1]} in B."
