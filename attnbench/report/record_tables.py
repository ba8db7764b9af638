"""Records as tables: the case and its contract, ranked rows, and why others are not ranked."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from attnbench.benchmark.machine import busy_cores, mean_load
from attnbench.benchmark.records import Record, baseline_of, half_width
from attnbench.errors import first_line

_MEANINGS = {
    "±": "95 % interval of ×, from processes: ± 50 % means from × / 1.5 to × · 1.5",
    "gain": "for a kernel: how many times faster it is than its scoring function",
    "tokens/s": "tokens of a call, over all items, per second",
    "cache_B": "bytes of the cache per token given to it, after that call; fewer where query\n"
    "              heads share keys and values (built-in layers: 2 such heads for 4 of queries)",
    "time_ms": "time of a call: a low quantile in each process, the median over processes",
    "peak_MiB": "peak memory of a call beyond inputs and parameters",
    "error": "largest error against float64 as a multiple of the allowed error; fine up to 1",
    "first_ms": "first call in a process, including compilation",
}

_CALLS = {
    "prefill": "prefill of layers: a batch of {batch} with {length} tokens each, no cache",
    "decode": "decode with layers: the last of {length} tokens with a cache of the others, "
    "a batch of {batch}",
}


_group_of = attrgetter("contract", "device_name", "case")
"""The contract, device and case of a record; only rows that share these are compared."""


def ranked_rows(records: Iterable[Record]) -> list[Record]:
    """One record per contract, device, case and subject: the newest, since none pools two runs.

    The rows of a case follow each other: ranked ones first, by their ratio or else by their time,
    then those that are not ok, which have neither.
    """
    newest: dict[tuple[str, ...], Record] = {}
    for record in sorted(records, key=lambda record: record.created):
        if record.status != "ok":
            record = replace(record, time_s=None, times_s=(), ratio=None)
        newest[(*_group_of(record), record.subject)] = record
    groups = defaultdict(list)
    for record in newest.values():
        groups[_group_of(record)].append(record)

    def rank(record: Record) -> tuple[bool, float, float]:
        return record.time_s is None, record.ratio or math.inf, record.time_s or 0.0

    return [record for group in groups.values() for record in sorted(group, key=rank)]


def parts(records: Sequence[Record]) -> Iterator[str | list[dict[str, Any]]]:
    """Lines and the rows of tables, in the order in which they are shown."""
    columns: dict[str, None] = {}
    for group in (list(same) for _, same in groupby(ranked_rows(records), key=_group_of)):
        table = [cells(row, group) for row in group]
        columns |= dict.fromkeys(table[0])
        yield _title(group[0])
        yield table
        yield "".join(f"  {line}\n" for line in reasons(group))
    ratios = {name: name.removeprefix("× ") for name in columns if name.startswith("× ")}
    lines = [
        f"{name + ': ':14}time over that of {baseline}, measured in turn in the same processes"
        for name, baseline in ratios.items()
    ]
    lines += [f"{name + ':':14}{text}" for name, text in _MEANINGS.items() if name in columns]
    lines.append("Rows with status ok are ranked, fastest first; the others say why not.")
    yield "\n".join([*lines, busy_line(records)])


def _title(record: Record) -> str:
    """A line about the case, and one about the contract."""
    where = f"{record.dtype}, mask {record.mask}, on {record.device_name or record.device}"
    if record.kind == "layer":
        call = _CALLS[record.direction].format(length=record.kv_len, batch=record.lead[0])
        sizes = f"{call}, E={record.query_size}, {where.replace(', mask none', '')}"
    else:
        lead = "x".join(map(str, record.lead)) or "none"
        groups = f" in groups of {record.kv_heads} key heads" if record.kv_heads else ""
        sizes = (
            f"{record.workload}: batch and heads {lead}{groups}, L={record.q_len} "
            f"S={record.kv_len} Eq={record.query_size} Ek={record.key_size} "
            f"Ev={record.value_size}, {where}"
        )
    return f"{sizes}\ncontract: {record.contract}"


def cells(row: Record, group: Iterable[Record]) -> dict[str, Any]:
    """A row of the table of its group; what was not ok has no baseline of its own."""
    baseline = next((r.baseline for r in group if r.baseline), baseline_of(row.kind))
    speed: dict[str, Any] = {"gain": row.gain, "time_ms": _scaled(row.time_s, 1e3)}
    start: dict[str, Any] = {"first_ms": _scaled(row.first_call_s, 1e3)}
    if row.kind == "layer":
        speed, start = {"tokens/s": _whole(row.tokens_per_s)}, {}
        if row.direction == "decode":
            speed["cache_B"] = _whole(row.cache_bytes_per_token)
    return {
        "subject": row.subject,
        f"× {baseline}": row.ratio,
        "±": percent(half_width(row.ratio_low, row.ratio_high)),
        **speed,
        "peak_MiB": _scaled(row.peak_bytes, 2**-20),
        "error": row.error_ratio,
        **start,
        "status": row.status,
    }


def percent(share: float | None) -> str:
    """A share in percent, as short as possible."""
    if share is None:
        return "-"
    return f"{share:.1%}" if share < 0.0995 else f"{min(share, 9.99):.0%}"


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def reasons(records: Iterable[Record]) -> list[str]:
    """Why rows are not ranked, one line for each reason."""
    subjects: dict[str, list[str]] = defaultdict(list)
    for record in records:
        if record.reason:
            subjects[f"{record.status}: {first_line(record.reason)}"].append(record.subject)
    return [f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in subjects.items()]


def busy_line(records: Iterable[Record]) -> str:
    """A sentence about the load of the machine."""
    load = mean_load(record.load for record in records)
    if not load:
        return ""
    return (
        f"Other processes kept {busy_cores(load)}, and {load.get('disturbed_share', 0.0):.0%} of "
        "the slots of time were interrupted; those are left out while enough remain, and the "
        "intervals are wider."
    )


def statuses_of(records: Iterable[Record]) -> list[str]:
    """The statuses for the exit code; a subject that is wrong counts as failed."""
    return [
        "failed"
        if record.status == "unverified" and (record.error_ratio or 0) > 1
        else record.status
        for record in records
    ]
