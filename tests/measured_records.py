"""Records: of one subject measured at one case in the process of the test, and made up."""

from __future__ import annotations

from typing import Any

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.measure import Bench, measure_row
from attnbench.benchmark.records import Record
from attnbench.benchmark.session import Row, record_of
from attnbench.benchmark.timing.contract import Contract
from attnbench.subject.subject import Subject

__all__ = ["measure", "record"]


def measure(
    subject: Subject, case: BenchCase, contract: Contract, *, bench: Bench | None = None
) -> Record:
    """The record of one measurement, which holds errors and raises none."""
    measured = measure_row(subject, case, bench or Bench(contract))
    row = Row(subject.address, subject.name, subject.kind, case)
    return record_of(row, contract, {"run": "", "versions": {}}, measured)


def record(subject: Any = "scaled_dot", length: Any = 64, time: Any = 1e-3, **changes: Any) -> Any:
    """A record of made-up numbers."""
    return Record(
        **{
            "run": "r",
            "created": "2026-01-01T00:00:00Z",
            "contract": "forward, warm cache, clock, 1 thread, v1",
            "subject": subject,
            "case": f"L{length}",
            "direction": "forward",
            "dtype": "float32",
            "device": "cpu",
            "device_name": "a processor",
            "status": "ok",
            "workload": f"L=S={length}",
            "q_len": length,
            "kv_len": length,
            "query_size": 8,
            "time_s": time,
            "times_s": (time,) * (time is not None),
            "peak_bytes": 1024,
            "error_ratio": 0.5,
            **changes,
        }
    )
