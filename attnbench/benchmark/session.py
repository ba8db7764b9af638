"""A session: one process after another measures the rows.

In a pass, a process measures the rows in random order, each in pairs with the baseline. This module
does not import torch.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.machine import available_bytes
from attnbench.benchmark.records import BASELINES, Record
from attnbench.benchmark.timing.contract import Contract
from attnbench.cases.case import Case
from attnbench.processes.pool import GIB, Event, Task, Workers
from attnbench.registry.address import Address

_TASK = "attnbench.benchmark.measure:measure_rows"
_FINAL_STATUSES = ("unsupported", "out_of_memory", "failed", "timeout", "crashed")
_SHARE = 0.95
"""Most of the available memory that a process may use, before the system ends one."""


@dataclass(frozen=True)
class Job:
    """A row that a process measures.

    Args:
        target: address of the subject.
        case: case at which it is measured.
        with_facts: whether to also measure agreement, memory and ceilings.
        clock: clock that the first process chose; if empty, this process chooses one.
    """

    target: Address
    case: BenchCase
    with_facts: bool = True
    clock: str = ""


_CASE_FIELDS = {f.name for f in fields(Case)} & {f.name for f in fields(Record)}


@dataclass
class Row:
    """A subject at a case, and its records so far by the number of the pass.

    Args:
        target: address by which a child process finds the subject.
        subject: name of the subject.
        kind: ``scoring``, ``kernel``, ``mechanism`` or ``layer``.
        case: case at which it is measured.
        by_pass: the records.
    """

    target: Address
    subject: str
    kind: str
    case: BenchCase
    by_pass: dict[int, Record] = field(default_factory=dict)

    @property
    def clock(self) -> str:
        """The clock that its first process chose."""
        return next((record.clock for record in self.by_pass.values() if record.clock), "")

    @property
    def ended(self) -> bool:
        """Whether further processes cannot add anything."""
        return any(record.status in _FINAL_STATUSES for record in self.by_pass.values())


@dataclass(frozen=True, kw_only=True)
class Session:
    """The rows of a run, and how they are measured.

    Args:
        rows: subjects at cases.
        contract: contract of every number.
        setting: the fields that all records share; see :func:`attnbench.benchmark.machine.here`.
        processes: passes over all rows.
        timeout_s: most seconds for one row in one process.
        baselines: addresses of the subjects with which attention and layers are paired.
    """

    rows: Sequence[Row]
    contract: Contract
    setting: Mapping[str, Any]
    processes: int = 3
    timeout_s: float = 120.0
    baselines: tuple[str, str] = BASELINES

    def records(self, earlier: Collection[Record] = ()) -> Iterator[Record]:
        """Yield a record for each row and process: those there are, and new ones as they come.

        Args:
            earlier: earlier records; what those of these rows and this contract hold is not
                measured again.
        """
        by_key = {
            (name, row.subject, row.case.id): row
            for row in self.rows
            for name in self.contract.names(row.case.direction, row.case.case.device)
        }
        for record in earlier:
            if record.key in by_key:
                by_key[record.key].by_pass[record.process] = record
                yield record
        for number in range(self.processes):
            left = [row for row in self.rows if not row.ended and number not in row.by_pass]
            random.Random(number).shuffle(left)  # noqa: S311 -- no secret
            while left:  # a row may end the process
                for measured in self._process(tuple(left), number):
                    row = left.pop(0)
                    record = record_of(row, self.contract, self.setting, measured, number)
                    row.by_pass[number] = record
                    yield record

    def _process(self, rows: Sequence[Row], number: int) -> Iterator[Mapping[str, Any]]:
        """Measure rows in one process, until one ends it; yields the fields of each."""
        jobs = [Job(row.target, row.case, not row.by_pass, row.clock) for row in rows]
        arguments: dict[str, Any] = {
            "jobs": jobs,
            "contract": self.contract,
            "seed": number,
            "baselines": self.baselines,
        }
        task = Task(
            rows[0].subject,
            _TASK,
            arguments,
            timeout_s=self.timeout_s,
            memory_gib=_SHARE * available_bytes() / GIB,
            threads=self.contract.threads,
        )
        with Workers() as workers:
            workers.submit(task)
            for event in workers.events():
                if event.kind == "value":
                    yield event.value
                elif event.kind != "done":
                    yield _end_fields(event)


def record_of(
    row: Row,
    contract: Contract,
    setting: Mapping[str, Any],
    measured: Mapping[str, Any],
    process: int = 0,
) -> Record:
    """The record of a row, with the fields that a process measured."""
    case, point = row.case, row.case.case
    clock = measured.get("clock") or row.clock
    known = {
        **setting,
        "process": process,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "contract": contract.name(case.direction, point.device, clock),
        "subject": row.subject,
        "kind": row.kind,
        "case": case.id,
        "workload": case.workload,
        "direction": case.direction,
        **{name: getattr(point, name) for name in _CASE_FIELDS},
        "kv_heads": case.kv_heads,
        "cache": contract.cache,
        "timing": contract.timing_on(point.device),
        "threads": contract.threads,
        "inputs": None if case.path is None else {"path": case.path, "sha256": case.sha256},
    }
    versions = {**setting["versions"], **measured.get("versions", {})}
    return Record(**{**known, **measured, "versions": versions})


def _end_fields(event: Event) -> dict[str, str]:
    """The fields of a row whose process ended during its measurement."""
    status = "failed" if event.kind == "raised" else str(event.kind)
    return {"status": "out_of_memory" if event.over_memory else status, "reason": event.reason}
