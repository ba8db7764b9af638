"""A session: one process after another measures the rows until a time budget is used up.

In a pass, a process measures the rows in random order, each in pairs with the baseline. A session
begins with three passes and adds more while the budget has time for a whole one. The remaining time
goes to the rows with the widest intervals. This module does not import torch.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.contract import Contract
from attnbench.benchmark.grid import half_width, scoring_address
from attnbench.benchmark.machine.load import available_bytes
from attnbench.benchmark.machine.setting import Setting, fields_of
from attnbench.benchmark.measuring.row_measurements import (
    Job,
    RowMeasurement,
    gain_of,
    ratio_of,
    summary_fields,
)
from attnbench.benchmark.records.record import BASELINES, Record, baseline_of
from attnbench.processes.cluster_machines import Machine
from attnbench.processes.pool import GIB, Event, Task, Workers
from attnbench.registry.address import Address

_TASK = "attnbench.benchmark.measuring.measurement:measure_rows"
_MEMORY = "attnbench.benchmark.machine.load:available_bytes"
_FINAL_STATUSES = ("unsupported", "out_of_memory", "failed", "timeout", "crashed")
_MAX_PASSES = 60
_MIN_WIDTH = 0.005
"""A row whose interval has a smaller half width, as a share, gets no further pass."""


@dataclass(frozen=True)
class Planned:
    """A subject to measure.

    Args:
        target: address by which a child process finds it.
        name: name of the subject.
        kind: ``scoring``, ``kernel``, ``mechanism`` or ``layer``.
        size: E of a layer; ``None`` for the E of each case.
    """

    target: Address
    name: str
    kind: str
    size: int | None = None


@dataclass(frozen=True)
class StoredMeasurement:
    """A measurement of a row, as stored until the record of its row is written."""

    subject: str
    case: str
    number: int
    measurement: RowMeasurement


@dataclass
class _Row:
    """A subject at a case, and its measurements so far by pass."""

    planned: Planned
    case: BenchCase
    by_pass: dict[int, RowMeasurement] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def measurements(self) -> list[RowMeasurement]:
        """The measurements in the order of the passes."""
        return [self.by_pass[number] for number in sorted(self.by_pass)]

    @property
    def clock(self) -> str:
        """The clock that its first process chose."""
        return next((m.clock for m in self.measurements if m.clock), "")

    @property
    def ended(self) -> bool:
        """Whether further processes cannot add anything."""
        return bool(self.measurements) and self.measurements[-1].status in _FINAL_STATUSES

    @property
    def width(self) -> float:
        """Half width of the ratio's interval; infinite while it is unknown."""
        ratio = ratio_of([m for m in self.measurements if m.slots])
        width = None if ratio is None else half_width(ratio.low, ratio.high)
        return float("inf") if width is None else width


@dataclass(frozen=True, kw_only=True)
class Session:
    """The subjects and cases of a run, and how they are measured.

    Args:
        subjects: subjects to measure.
        cases: cases at which each subject is measured.
        contract: contract of every number.
        setting: setting of the run.
        processes: fewest passes over all rows.
        budget_s: seconds after the start during which further passes may begin.
        timeout_s: most seconds for one row in one process.
        seed: seed of the random orders.
        baselines: addresses of the subjects with which attention and layers are paired.
        machine: machine of a cluster, where each row gets its own process; by default this one.
    """

    subjects: Sequence[Planned]
    cases: Sequence[BenchCase]
    contract: Contract
    setting: Setting
    processes: int = 3
    budget_s: float = 0.0
    timeout_s: float = 120.0
    seed: int = 0
    baselines: tuple[str, str] = BASELINES
    machine: Machine | None = None

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.pairs)

    @functools.cached_property
    def pairs(self) -> list[tuple[Planned, BenchCase]]:
        """Each subject with each case of its kind; a layer's cases have its own E."""
        return [
            (planned, case if planned.size is None else case.sized(planned.size))
            for case in self.cases
            for planned in self.subjects
            if case.suits(planned.kind)
        ]

    def holds(self, record: Record) -> bool:
        """Whether a record belongs to a row of this session and to its contract."""
        return any(
            (record.subject, record.case) == (planned.name, case.id)
            and record.contract in self.contract.names(case.direction, case.case.device)
            for planned, case in self.pairs
        )

    def events(
        self, records: Collection[Record] = (), stored: Collection[StoredMeasurement] = ()
    ) -> Iterator[StoredMeasurement | Record]:
        """Measure; yields each measurement, and the record of a row once it is complete.

        A later record of the same row includes more measurements and replaces the earlier one.

        Args:
            records: earlier records of this run; their rows are not measured again.
            stored: earlier measurements of this run, of rows without a record.
        """
        keys = {(record.subject, record.case) for record in records}
        rows = [
            _Row(planned, case)
            for planned, case in self.pairs
            if (planned.name, case.id) not in keys
        ]
        by_name = {(row.planned.name, row.case.id): row for row in rows}
        for item in stored:
            if (item.subject, item.case) in by_name:
                by_name[item.subject, item.case].by_pass[item.number] = item.measurement
        start = time.monotonic()
        for number in range(self.processes):
            selection = [row for row in rows if not row.ended and number not in row.by_pass]
            pass_start, is_last = time.monotonic(), number == self.processes - 1
            for item in self._pass(selection, number):
                yield item
                row = by_name[item.subject, item.case]
                if (is_last or row.ended) and row.planned.kind != "kernel":
                    yield self._record(row, rows)
            pass_s = time.monotonic() - pass_start
        yield from (self._record(row, rows) for row in rows if row.planned.kind == "kernel")
        updates = yield from self._further_passes(rows, start + self.budget_s, pass_s)
        yield from (self._record(row, rows) for row in updates)

    def _further_passes(
        self, rows: Sequence[_Row], deadline: float, pass_s: float
    ) -> Generator[StoredMeasurement, None, list[_Row]]:
        """Make further passes while there is time; returns the rows that were measured again."""
        updates: dict[int, _Row] = {}
        for number in range(self.processes, _MAX_PASSES):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            selection = [row for row in rows if not row.ended and row.width > _MIN_WIDTH]
            if remaining < pass_s:
                selection = _widest(selection, remaining)
            if not selection:
                break
            yield from self._pass(selection, number)
            updates |= {id(row): row for row in selection}
        return [row for row in rows if id(row) in updates]

    def _pass(self, rows: Sequence[_Row], number: int) -> Iterator[StoredMeasurement]:
        """Make one pass in one process; after a row that ends the process, start another."""
        queue = list(rows)
        random.Random(f"{self.seed} {number}").shuffle(queue)  # noqa: S311 -- no secret
        while queue:
            count = 0
            # on a cluster, a lost worker then costs one row only
            batch = queue if self.machine is None else queue[:1]
            for row, measurement, seconds in self._process(batch, number):
                count += 1
                row.by_pass[number] = measurement
                row.seconds = seconds
                yield StoredMeasurement(row.planned.name, row.case.id, number, measurement)
            del queue[: max(count, 1)]

    def _process(
        self, rows: Sequence[_Row], number: int
    ) -> Iterator[tuple[_Row, RowMeasurement, float]]:
        jobs = [Job(row.planned.target, row.case, not row.measurements, row.clock) for row in rows]
        arguments: dict[str, Any] = {
            "jobs": jobs,
            "contract": self.contract,
            "seed": self.seed + number,
            "baselines": self.baselines,
        }
        task = Task(
            rows[0].planned.name,
            _TASK,
            arguments,
            timeout_s=self.timeout_s,
            memory_gib=(self._memory_bytes or available_bytes()) / GIB,
            threads=self.contract.threads,
        )
        place, start = 0, time.perf_counter()
        for event in self._events(task):
            if event.kind == "value":
                place, measurement = event.value
                if measurement is not None:
                    yield rows[place], measurement, time.perf_counter() - start
                    start, place = time.perf_counter(), place + 1
            elif event.kind != "done":
                yield rows[place], _end_measurement(event), time.perf_counter() - start

    @functools.cached_property
    def _memory_bytes(self) -> int:
        """Memory of the cluster's machine; cached, since asking takes a task."""
        return 0 if self.machine is None else int(self.machine.call(Task("memory", _MEMORY)))

    def _events(self, task: Task) -> Iterator[Event]:
        if self.machine is not None:
            yield from self.machine.events(task)
            return
        with Workers() as workers:
            workers.submit(task)
            yield from workers.events()

    def _record(self, row: _Row, rows: Sequence[_Row]) -> Record:
        fields = fields_of(
            row.case, self.contract, self.setting, subject=row.planned.name, kind=row.planned.kind
        )
        point = row.case
        fields["contract"] = self.contract.name(point.direction, point.case.device, row.clock)
        summary = summary_fields(
            row.measurements, baseline_of(row.planned.kind, self.baselines), point.tokens
        )
        summary["versions"] = {**fields["versions"], **summary.pop("versions", {})}
        summary["gain"] = self._gain(row, rows)
        return Record(**{**fields, **summary})

    def _gain(self, row: _Row, rows: Sequence[_Row]) -> float | None:
        if row.planned.kind != "kernel":
            return None
        name = scoring_address(row.planned.name)
        for scoring in rows:
            if scoring.planned.name == name and scoring.case == row.case:
                numbers = sorted(set(row.by_pass) & set(scoring.by_pass))
                pairs = [row.by_pass[n] for n in numbers], [scoring.by_pass[n] for n in numbers]
                gain = gain_of(*pairs)
                return None if gain is None else gain.ratio
        return None


def _widest(rows: Sequence[_Row], seconds: float) -> list[_Row]:
    """The rows with the widest intervals that can be measured within ``seconds``."""
    selection, total = [], 1.0  # seconds to start a process
    for row in sorted(rows, key=lambda row: -row.width):
        if row.width > _MIN_WIDTH and total + row.seconds <= seconds:
            selection.append(row)
            total += row.seconds
    return selection


def _end_measurement(event: Event) -> RowMeasurement:
    """The measurement of a row whose process ended during its measurement."""
    if event.over_memory:
        return RowMeasurement("out_of_memory", event.reason)
    return RowMeasurement("failed" if event.kind == "raised" else event.kind, event.reason)
