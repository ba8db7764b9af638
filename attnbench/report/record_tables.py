"""Records as tables: the case and its contract, ranked rows, and why others are not ranked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from attnbench.benchmark.machine import busy_cores, mean_load
from attnbench.benchmark.records import BASELINES, Record, baseline_of, half_width
from attnbench.errors import first_line
from attnbench.report.ranking import Row, rows

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


_RATIO = "time over that of {}, measured in turn in the same processes"


def legend(tables: Iterable[Iterable[Mapping[str, Any]]]) -> str:
    """Explain the columns of some tables, each once."""
    columns = dict.fromkeys(name for table in tables for row in table for name in row)
    ratios = [(name, name.removeprefix("× ")) for name in columns if name.startswith("× ")]
    lines = [f"{name + ': ':14}{_RATIO.format(baseline)}" for name, baseline in ratios]
    lines += [f"{name + ':':14}{text}" for name, text in _MEANINGS.items() if name in columns]
    return "\n".join(
        [*lines, "Rows with status ok are ranked, fastest first; the others say why not."]
    )


def title(record: Record) -> str:
    """The title of a table: a line about the case and the contract."""
    where = f"{record.dtype}, mask {record.mask}, on {record.where or record.device}"
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
    baseline = record.baseline or baseline_of(record.kind)
    return f"{sizes}\nbaseline: {baseline}; contract: {record.contract}"


_CALLS = {
    "prefill": "prefill of layers: a batch of {batch} with {length} tokens each, no cache",
    "decode": "decode with layers: the last of {length} tokens with a cache of the others, "
    "a batch of {batch}",
}


def parts(records: Sequence[Record]) -> Iterator[str | list[dict[str, Any]]]:
    """Lines and the rows of tables, in the order in which they are shown."""
    titles = {(record.case, record.machine_name): title(record) for record in records}
    tables = ranking(records)
    for key, table in tables.items():
        yield titles[key]
        yield [{k: v for k, v in row.items() if k not in ("reason", "processes")} for row in table]
        yield "".join(f"  {line}\n" for line in reasons(table))
    yield f"{legend(tables.values())}\n{busy_line(records)}"


def ranking(records: Iterable[Record]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The rows to print for each case and machine: ranked ones first, fastest first."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows(records):
        groups[row.case, row.machine_name].append(row)
    return {key: [_cells(row, group) for row in group] for key, group in groups.items()}


def common_baseline(records: Iterable[Record], *, layers: bool) -> str:
    """The subject with which attention, or layers, were paired; a row without a time has none."""
    names = (r.baseline for r in records if r.baseline and (r.kind == "layer") == layers)
    return next(names, BASELINES[layers])


def _cells(row: Row, group: Iterable[Row]) -> dict[str, Any]:
    layer = row.kind == "layer"
    speed: dict[str, Any] = {"gain": row.gain, "time_ms": _scaled(row.time_s, 1e3)}
    start: dict[str, Any] = {"first_ms": _scaled(row.first_call_s, 1e3)}
    if layer:
        speed, start = {"tokens/s": whole(row.tokens_per_s)}, {}
        if row.direction == "decode":
            speed["cache_B"] = whole(row.cache_bytes_per_token)
    return {
        "subject": row.subject,
        f"× {common_baseline(group, layers=layer)}": row.ratio,
        "±": percent(half_width(row.ratio_low, row.ratio_high)),
        **speed,
        "peak_MiB": _scaled(row.peak_bytes, 2**-20),
        "error": row.error_ratio,
        **start,
        "processes": row.processes,
        "status": row.status,
        "reason": row.reason,
    }


def percent(share: float | None) -> str:
    """A share in percent, as short as possible."""
    if share is None:
        return "-"
    return f"{share:.1%}" if share < 0.0995 else f"{min(share, 9.99):.0%}"


def whole(value: float | None) -> int | None:
    """The nearest whole number."""
    return None if value is None else round(value)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def reasons(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Why rows are not ranked, one line for each reason."""
    subjects: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row["reason"]:
            subjects[f"{row['status']}: {first_line(row['reason'])}"].append(row["subject"])
    return [f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in subjects.items()]


def busy_line(records: Iterable[Record]) -> str:
    """A sentence about the load of the machine."""
    records = list(records)
    machines = list(dict.fromkeys(record.machine_name for record in records))
    if len(machines) > 1:
        groups = {name: [r for r in records if r.machine_name == name] for name in machines}
        return "\n".join(f"On {name}: {busy_line(group)}" for name, group in groups.items())
    load = mean_load(record.load for record in records)
    if not load:
        return ""
    line = (
        f"Other processes kept {busy_cores(load)}, and "
        f"{load.get('disturbed_share', 0.0):.0%} of the slots of time were interrupted"
    )
    if load.get("stolen_share", 0.0) >= 0.005:
        line += f"; a hypervisor took {load['stolen_share']:.1%} of the time"
    return f"{line}. Those are left out while enough remain; a busy machine widens the intervals."


def statuses_of(records: Iterable[Record]) -> list[str]:
    """The statuses for the exit code; a subject that is wrong counts as failed."""
    return [
        "failed"
        if record.status == "unverified" and (record.error_ratio or 0) > 1
        else record.status
        for record in records
    ]


def as_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Records as plain data, for JSON."""
    return [asdict(record) for record in records]
