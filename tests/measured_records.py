"""One subject measured at one case, in the process of the test."""

from __future__ import annotations

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.contract import Contract
from attnbench.benchmark.machine.setting import Setting, fields_of
from attnbench.benchmark.measuring import measurement
from attnbench.benchmark.measuring.row_measurements import summary_fields
from attnbench.benchmark.measuring.shared_timers import Bench
from attnbench.benchmark.records.record import Record, baseline_of
from attnbench.subject.subject import Subject

__all__ = ["measure"]


def measure(
    subject: Subject, case: BenchCase, contract: Contract, *, bench: Bench | None = None
) -> Record:
    """The record of one measurement, which holds errors and raises none."""
    row = measurement.measure_row(subject, case, bench or Bench(contract))
    fields = fields_of(case, contract, Setting(), subject=subject.name, kind=subject.kind)
    fields["contract"] = contract.name(case.direction, case.case.device, row.clock)
    summary = summary_fields([row], baseline_of(subject.kind), case.tokens)
    return Record(**{**fields, **summary})
