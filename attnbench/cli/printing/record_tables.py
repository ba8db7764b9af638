"""Records as tables: a case and its contract, ranked rows, and why others are not ranked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from attnbench.benchmark.grid import busy, half_width
from attnbench.benchmark.records.record import Record
from attnbench.report.summary import Row, rows

__all__ = [
    "LEGEND",
    "as_rows",
    "busy_line",
    "percent",
    "ranked",
    "reasons",
    "statuses_of",
    "titled",
]

LEGEND = """\
× dot     time over that of scaled_dot, measured in turn in the same processes; ± is half the width
          of its 95 % interval, from processes
gain      of a kernel: how many times faster than its scoring function
time_ms   a low quantile of a call's times, the median over processes
peak_MiB  most memory during a call beyond inputs and parameters
error     largest error against float64 as a multiple of what is allowed: up to 1 is agreement
roof_%    the least time in which this machine could move inputs and results and do the matrix
          products, of the time it took
first_ms  first call in a process, with whatever it compiles
Only rows with status ok are ranked, fastest first; the others say why below."""


def titled(record: Record) -> str:
    """One line about a case and its contract, above its table."""
    lead = "x".join(map(str, record.lead)) or "none"
    grouped = f" in groups of {record.kv_heads} key heads" if record.kv_heads else ""
    sizes = f"Eq={record.query_size} Ek={record.key_size} Ev={record.value_size}"
    return (
        f"{record.workload}: batch and heads {lead}{grouped}, L={record.q_len} S={record.kv_len} "
        f"{sizes}, {record.dtype}, mask {record.mask}, on {record.device_name or record.device}\n"
        f"contract: {record.contract}"
    )


def ranked(records: Iterable[Record]) -> dict[str, list[dict[str, Any]]]:
    """Rows to print for each case: the ranked ones first, fastest first."""
    tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows(records):
        tables[row.record.case].append(_cells(row))
    return dict(tables)


def _cells(row: Row) -> dict[str, Any]:
    return {
        "subject": row.record.subject,
        "× dot": row.ratio,
        "±": percent(half_width(row.ratio_low, row.ratio_high)),
        "gain": row.gain,
        "time_ms": _scaled(row.time_s, 1e3),
        "peak_MiB": _scaled(row.peak_bytes, 2**-20),
        "error": row.error_ratio,
        "roof_%": _scaled(row.roofline_share, 100),
        "first_ms": _scaled(row.first_call_s, 1e3),
        "processes": row.processes,
        "status": row.status,
        "reason": row.reason,
    }


def percent(share: float | None) -> str:
    """A share in percent, as short as it can be told."""
    if share is None:
        return "-"
    return f"{share:.1%}" if share < 0.0995 else f"{min(share, 9.99):.0%}"


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def reasons(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Why rows are not ranked, one line for each reason."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row["reason"]:
            found[f"{row['status']}: {row['reason'].splitlines()[0]}"].append(row["subject"])
    return [f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in found.items()]


def busy_line(records: Iterable[Record]) -> str:
    """How busy the machine was, in a sentence."""
    load = busy(records)
    if not load:
        return ""
    line = (
        f"Others kept {load['others_cores']:.1f} of {load['cores']:.0f} cores busy meanwhile, and "
        f"{load.get('disturbed_share', 0.0):.0%} of the slots were disturbed"
    )
    if load.get("stolen_share", 0.0) >= 0.005:
        line += f"; a hypervisor took {load['stolen_share']:.1%} of the time"
    return f"{line}. A busy machine widens the intervals."


def statuses_of(records: Iterable[Record]) -> list[str]:
    """Statuses for the exit code: a subject that is wrong has failed."""
    return [
        "failed"
        if record.status == "unverified" and (record.error_ratio or 0) > 1
        else record.status
        for record in records
    ]


def as_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Records as plain data, for JSON."""
    return [asdict(record) for record in records]
