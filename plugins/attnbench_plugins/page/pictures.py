"""Texts of the page, and its pictures: inline SVG whose colours follow the page's theme."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from attnbench.timing import Record

_COLOURS = {"#010203": "var(--main)", "#040506": "var(--dim)"}
"""Colours in a picture, and the page's that take their place."""
_MAIN, _DIM = _COLOURS


def panel(
    own: Sequence[Record], baseline: Sequence[Record], family: Iterable[Sequence[Record]]
) -> Markup:
    """A small log-log chart of a subject and its baseline; a line is broken at a gap.

    Args:
        own, baseline: their rows by length.
        family: the rows of each subject whose panel shares the axes.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    rows = [row for of_one in family for row in of_one]
    lengths = sorted({row.kv_len for row in rows})
    times = [time for row in rows for time in (row.time_s or math.nan, *row.times_s)]
    figure = Figure(figsize=(2.9, 1.9), layout="constrained")
    axes = figure.subplots()
    axes.grid(color=_DIM, alpha=0.2, linewidth=0.5)
    axes.tick_params(colors=_DIM, labelsize=8, which="both", length=0)
    axes.spines[:].set_visible(False)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_xticks(lengths[:: math.ceil(len(lengths) / 4)])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(lambda value, _: seconds_text(value))
    axes.set_ylim(min(times) / 1.3, max(times) * 1.3)
    for shown, colour in ((baseline, _DIM), (own, _MAIN)):
        by_length = {row.kv_len: row.time_s or math.nan for row in shown}
        axes.plot(lengths, [by_length.get(n, math.nan) for n in lengths], ".-", color=colour, lw=1)
    bars = [(row.kv_len, min(row.times_s), max(row.times_s)) for row in own]
    axes.vlines(*zip(*bars, strict=True), color=_MAIN, linewidth=3, alpha=0.4)
    content = io.StringIO()
    title = f"time of {own[0].subject} over L = S"
    about = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure.savefig(content, format="svg", transparent=True, metadata=about)
    return _themed(content.getvalue(), title)


def _themed(text: str, title: str) -> Markup:
    """The picture in the page's fonts and colours, with its title for who does not see it."""
    text = re.sub(r"font-family: [^;]*; ", "", text[text.index("<svg") :])  # the page's own
    for colour, of_page in _COLOURS.items():
        text = text.replace(colour, of_page)
    label = Markup('<svg role="img" aria-label="{}"').format(title)
    return label + Markup(text.removeprefix("<svg"))  # noqa: S704 -- matplotlib escapes names


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
