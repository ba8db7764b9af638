"""Texts of the page: numbers with units, breakable names, and positions."""

from __future__ import annotations

import math
import re

from markupsafe import Markup

from attnbench.benchmark.records import Record

_PREFIXES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def _three_digits(number: float) -> str:
    """A number with three digits, without an exponent for a thousand."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def seconds_text(seconds: float | None) -> str:
    """A time with three digits and its unit."""
    if seconds is None:
        return "–"
    for factor, unit in _PREFIXES:
        if seconds >= factor:
            return f"{_three_digits(seconds / factor)} {unit}"
    return f"{seconds / 1e-9:.2g} ns"


def bytes_text(count: float | None) -> str:
    """A number of bytes with three digits and its unit."""
    if count is None:
        return "–"
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= factor:
            return f"{_three_digits(count / factor)} {unit}"
    return f"{count:.0f} B"


def log_share(ratio: float) -> float:
    """The position of a ratio between 1/100 and 100 on a logarithmic scale, from 0 to 1."""
    return min(1.0, max(0.0, 0.5 + math.log10(ratio) / 4)) if ratio > 0 else 0.0


def percent(share: float) -> str:
    """A share in whole percent."""
    return "<1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def sizes(record: Record) -> str:
    """The sizes of a case as text."""
    lead = "×".join(map(str, record.lead)) or "1"
    if record.kind == "layer":
        return f"B {lead}, {record.q_len} of S {record.kv_len} tokens, E {record.query_size}"
    heads = f" ({record.kv_heads} heads of key and value)" if record.kv_heads else ""
    sizes = {record.query_size, record.key_size, record.value_size}
    trio = f"{record.query_size}, {record.key_size}, {record.value_size} of query, key, value"
    features = str(record.query_size) if len(sizes) == 1 else trio
    return f"lead {lead}{heads}, L {record.q_len}, S {record.kv_len}, E {features}"


def fact(value: object, key: str) -> str:
    """A value in the table of a machine, with the unit that ends its key."""
    if not isinstance(value, int | float):
        return str(value)
    if key.endswith("_per_s"):
        unit = "GB/s" if "bytes" in key else "billion a second"
        return f"{value / 1e9:.3g} {unit}"
    if key.endswith("_bytes"):
        return bytes_text(value)
    return seconds_text(value) if key.endswith("_s") else str(value)


def fact_name(key: str) -> str:
    """The name of a fact, without the unit at its end."""
    return re.sub(r"_(s|bytes|bytes_per_s|per_s)$", "", key).replace("_", " ")


def breakable(name: str) -> Markup:
    """A name that may be broken after its punctuation."""
    return Markup("<wbr>").join(re.split("(?<=[_/(])", name))
