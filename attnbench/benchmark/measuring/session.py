"""A session: subjects measured at cases in interleaved rounds, each number in a process of its own.

In each round every subject is measured once at every case, before the next round begins: what a
machine does over time meets all subjects alike. This process imports no torch.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnbench.benchmark.measuring.contract import Contract
from attnbench.benchmark.measuring.memory_limits import available_bytes
from attnbench.benchmark.measuring.quiet import Reading, idle
from attnbench.benchmark.measuring.setting import Setting, fields_of
from attnbench.benchmark.records.record import Record
from attnbench.benchmark.workloads import BenchCase
from attnbench.processes.pool import GIB, Event, Task, Workers, call

__all__ = ["Planned", "Session"]

_INSIDE = "attnbench.benchmark.measuring.measurement"
_IDLE_READINGS = 8
_ONCE = ("unsupported", "out_of_memory", "failed", "timeout", "crashed")


@dataclass(frozen=True)
class Planned:
    """A subject to be measured.

    Args:
        target: the address that a child finds it by.
        name: its name, since an address may hold several.
        kind: ``scoring``, ``kernel`` or ``mechanism``.
    """

    target: str
    name: str
    kind: str


@dataclass(frozen=True, kw_only=True)
class Session:
    """What is measured, and how.

    Args:
        subjects: in the order in which a round takes them; each round begins one later.
        cases: in order.
        contract: of every number.
        setting: of the run.
        processes: rounds: processes for each subject and case.
        timeout_s: longest time for one measurement.
        retries: how often one that a busy machine made void is repeated; of all together, no more
            than a tenth or ten.
    """

    subjects: Sequence[Planned]
    cases: Sequence[BenchCase]
    contract: Contract
    setting: Setting
    processes: int = 1
    timeout_s: float = 120.0
    retries: int = 2

    def __len__(self) -> int:
        """How many records it gives."""
        return self.processes * len(self.cases) * len(self.subjects)

    def keys(self) -> set[tuple[str, str, str, int]]:
        """The keys of its records."""
        return {
            (self.contract.name(c.direction, c.case.device), planned.name, c.id, process)
            for process, c, planned in self._order()
        }

    def records(self, done: Collection[Record] = ()) -> Iterator[Record]:
        """Measure, and give each record as it comes.

        A measurement that a busy machine made void is repeated, a few times in a session. What was
        not to be measured in one round is left out of the later ones.

        Args:
            done: records of the same run, which are not measured again.
        """
        known = {record.key for record in done}
        hopeless = {record.key[:3] for record in done if record.status in _ONCE}
        readings: dict[tuple[str, str], list[Reading]] = defaultdict(list)
        repeats = max(10, len(self) // 10)
        for process, case, planned in self._order():
            contract = self.contract.name(case.direction, case.case.device)
            row = contract, planned.name, case.id
            if (*row, process) in known or row in hopeless:
                continue
            quiet = readings[case.case.device, case.case.dtype]
            if not quiet:
                quiet += self._idle_readings(case)
            for attempt in range(self.retries + 1):
                record = self._measured(planned, case, process, idle(quiet) if quiet else None)
                quiet += _readings(record)
                if record.status != "void" or attempt == self.retries or repeats == 0:
                    break
                repeats -= 1
            if record.status in _ONCE:
                hopeless.add(row)
            yield record

    def _order(self) -> Iterator[tuple[int, BenchCase, Planned]]:
        for process in range(self.processes):
            first = process % max(1, len(self.subjects))
            for case in self.cases:
                for planned in (*self.subjects[first:], *self.subjects[:first]):
                    yield process, case, planned

    def _idle_readings(self, case: BenchCase) -> list[Reading]:
        arguments = {
            "device": case.case.device,
            "dtype": case.case.dtype,
            "threads": self.contract.threads,
            "number": _IDLE_READINGS,
        }
        found: list[Reading] = call(Task("sentinels", f"{_INSIDE}:sentinel_readings", arguments))
        return found

    def _measured(
        self, planned: Planned, case: BenchCase, process: int, quiet: Reading | None
    ) -> Record:
        setting = replace(self.setting, process=process)
        arguments: dict[str, Any] = {
            "target": planned.target,
            "subject": planned.name,
            "case": case,
            "contract": self.contract,
            "setting": setting,
            "quiet": quiet,
        }
        task = Task(
            planned.name,
            f"{_INSIDE}:measure_address",
            arguments,
            timeout_s=self.timeout_s,
            memory_gib=available_bytes() / GIB,
            threads=self.contract.threads,
        )
        started = time.perf_counter()
        record: Record | None = None
        with Workers() as workers:
            workers.submit(task)
            for event in workers.events():
                if event.kind == "value":
                    record = event.value
                elif event.kind != "done":
                    fields = fields_of(
                        case, self.contract, setting, subject=planned.name, kind=planned.kind
                    )
                    record = Record(**fields, **_ending(event))
        assert record is not None
        elapsed = time.perf_counter() - started
        return replace(record, overhead_s=elapsed - (record.measuring_s or 0.0))


def _ending(event: Event) -> dict[str, Any]:
    """Status and reason of a measurement whose process gave no record."""
    if event.over_memory:
        return {"status": "out_of_memory", "reason": event.reason}
    status = "failed" if event.kind == "raised" else event.kind
    return {"status": status, "reason": event.reason}


def _readings(record: Record) -> list[Reading]:
    found = record.sentinel
    if not found:
        return []
    return [
        Reading(found[f"copy_{when}_s"], found[f"matmul_{when}_s"]) for when in ("before", "after")
    ]
