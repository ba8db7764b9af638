"""Texts of the page: numbers with units, and positions."""

from __future__ import annotations

import math

from attnbench.benchmark.records import Record


def _with_unit(value: float | None, units: dict[str, float]) -> str:
    """A number with three digits, in the first unit that it has at least one of."""
    if value is None:
        return "–"
    last = list(units)[-1]
    unit = next((unit for unit, size in units.items() if value >= size), last)
    number = value / units[unit]
    return f"{f'{number:.0f}' if number >= 100 else f'{number:.3g}'} {unit}"


def seconds_text(seconds: float | None) -> str:
    """A time with three digits and its unit."""
    return _with_unit(seconds, {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9})


def bytes_text(count: float | None) -> str:
    """A number of bytes with three digits and its unit."""
    return _with_unit(count, {"GiB": 2**30, "MiB": 2**20, "KiB": 2**10, "B": 1})


def log_share(ratio: float) -> float:
    """The position of a ratio between 1/100 and 100 on a logarithmic scale, from 0 to 1."""
    return min(1.0, max(0.0, 0.5 + math.log10(ratio) / 4)) if ratio > 0 else 0.0


def sizes(record: Record) -> str:
    """The sizes of a case as text."""
    lead = "×".join(map(str, record.lead)) or "1"
    if record.kind == "layer":
        return f"B {lead}, {record.q_len} of S {record.kv_len} tokens, E {record.query_size}"
    heads = f" ({record.kv_heads} heads of key and value)" if record.kv_heads else ""
    features = dict.fromkeys(map(str, (record.query_size, record.key_size, record.value_size)))
    return f"lead {lead}{heads}, L {record.q_len}, S {record.kv_len}, E {', '.join(features)}"


FILTERS = {
    "seconds": seconds_text,
    "bytes": bytes_text,
    "log_share": log_share,
    "sizes": sizes,
}
