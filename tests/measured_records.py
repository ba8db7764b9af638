"""One subject measured at one case, in the process of the test."""

from __future__ import annotations

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.machine import Setting
from attnbench.benchmark.measure import Bench, measure_row
from attnbench.benchmark.records import Record
from attnbench.benchmark.session import fields_of
from attnbench.benchmark.timing.contract import Contract
from attnbench.subject.subject import Subject

__all__ = ["measure"]


def measure(
    subject: Subject, case: BenchCase, contract: Contract, *, bench: Bench | None = None
) -> Record:
    """The record of one measurement, which holds errors and raises none."""
    row = measure_row(subject, case, bench or Bench(contract))
    names = {"subject": subject.name, "kind": subject.kind}
    fields = fields_of(case, contract, Setting(), **names, clock=row.get("clock", ""))
    return Record(**{**fields, **row})
