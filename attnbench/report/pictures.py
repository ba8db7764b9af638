"""Pictures of the page, by matplotlib as inline SVG whose colours follow the page's theme."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from attnbench.report.ranking import Curve
from attnbench.report.texts import bytes_text, seconds_text

_COLOURS = {"#010203": "var(--main)", "#040506": "var(--dim)"}
"""Colours in a picture, and the page's that take their place."""
_MAIN, _DIM = _COLOURS


def panel(curve: Curve, times: Sequence[float]) -> Markup:
    """A small log-log chart of a curve and its baseline; a line is dashed across a gap.

    Args:
        curve: the curve; one of its lengths between two neighbouring points is a gap.
        times: those of all panels in a family, which share their axes.
    """
    figure, axes = _axes(2.9, 1.9)
    axes.set_xscale("log", base=2)
    _set_log_scale(axes, "y")
    axes.set_xticks(curve.lengths[:: math.ceil(len(curve.lengths) / 4)])
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_major_formatter(lambda value, _: seconds_text(value))
    axes.set_ylim(min(times) / 1.3, max(times) * 1.3)
    for points, colour in ((curve.baseline, _DIM), (curve.points, _MAIN)):
        for (a, b), is_gap in zip(pairwise(points), gaps(points, curve.lengths), strict=True):
            axes.plot(*zip(a, b, strict=True), "--" if is_gap else "-", color=colour, linewidth=1)
        axes.plot(*zip(*points, strict=True), ".", color=colour) if points else None
    axes.vlines(*zip(*curve.bars, strict=True), color=_MAIN, linewidth=3, alpha=0.4)
    return _svg(figure, f"time of {curve.subject} over L = S")


def gaps(points: Sequence[tuple[int, float]], lengths: Sequence[int]) -> list[bool]:
    """For each two neighbouring points, whether one of the lengths between them is missing."""
    return [any(a < length < b for length in lengths) for (a, _), (b, _) in pairwise(points)]


def scatter(title: str, points: Sequence[tuple[str, float, int]]) -> Markup:
    """Names at their seconds (x) and bytes (y); every second one is below its point."""
    figure, axes = _axes(6.4, 3.4)
    _set_log_scale(axes, "x")
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: seconds_text(value))
    axes.yaxis.set_major_formatter(lambda value, _: bytes_text(value))
    axes.plot([s for _, s, _ in points], [count for *_, count in points], "o", color=_MAIN)
    axes.margins(0.15)
    for number, (name, seconds, count) in enumerate(sorted(points, key=lambda point: point[1])):
        offset = (6, -12) if number % 2 else (6, 4)  # neighbours do not cover each other
        axes.annotate(
            name, (seconds, count), offset, textcoords="offset points", color=_DIM, parse_math=False
        )
    return _svg(figure, title)


def _axes(width: float, height: float) -> Any:
    """A figure of inches, and its axes with a faint grid."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.grid(color=_DIM, alpha=0.2, linewidth=0.5)
    axes.tick_params(colors=_DIM, labelsize=8, which="both", length=0)
    axes.minorticks_off()
    axes.spines[:].set_visible(False)
    return figure, axes


def _set_log_scale(axes: Any, name: str) -> None:
    """Make an axis logarithmic, with ticks at 1, 2 and 5 times the powers of 10."""
    from matplotlib.ticker import LogLocator, NullLocator

    axes.set(**{f"{name}scale": "log"})
    axis = getattr(axes, f"{name}axis")
    axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=6))
    axis.set_minor_locator(NullLocator())


def _svg(figure: Any, title: str) -> Markup:
    """The picture, with its title for who does not see it."""
    import matplotlib

    content = io.StringIO()
    about = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure.savefig(content, format="svg", transparent=True, metadata=about)
    text = content.getvalue()
    text = re.sub(r"font-family: [^;]*; ", "", text[text.index("<svg") :])  # the page's own
    for colour, of_page in _COLOURS.items():
        text = text.replace(colour, of_page)
    label = Markup('<svg role="img" aria-label="{}"').format(title)
    return label + Markup(text.removeprefix("<svg"))  # noqa: S704 -- matplotlib escapes names
