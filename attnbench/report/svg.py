"""Charts as inline SVG without a library; colours are classes that follow the page's theme."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from attnbench.report.ranking import Curve
from attnbench.report.texts import bytes_text, seconds_text

_MOST_TICKS = 4


@dataclass(frozen=True)
class Axis:
    """A logarithmic axis."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        """The coordinate of a value."""
        span = math.log(self.high) - math.log(self.low)
        share = (math.log(max(value, 1e-300)) - math.log(self.low)) / span
        return self.start + share * (self.end - self.start)


def log_axis(
    values: Iterable[float],
    start: float,
    end: float,
    text: Callable[[float], str] = "{:g}".format,
    *,
    base: float = 10.0,
) -> Axis:
    """An axis for all values, with ticks at powers of a base (for 10 also at 2 and 5)."""
    numbers = [value for value in values if value > 0] or [1.0]
    low, high = min(numbers) / 1.3, max(numbers) * 1.3
    first, last = math.floor(math.log(low, base)), math.ceil(math.log(high, base))
    powers = [base**power for power in range(first, last + 1)]
    if base == 10.0 and high / low < 300:
        powers = [factor * power for power in powers for factor in (1, 2, 5)]
    powers = [power for power in powers if low <= power <= high]
    step = max(1, math.ceil(len(powers) / _MOST_TICKS))
    return Axis(low, high, start, end, tuple((p, text(p)) for p in powers[::step]))


def _grid(x: Axis, y: Axis) -> Markup:
    """A line and a text for each tick: x1, x2, y1 and y2, and where the text is anchored."""
    ticks = [
        *(
            (x.at(v), x.at(v), y.start, y.end, x.at(v), y.start + 13, "middle", t)
            for v, t in x.ticks
        ),
        *(
            (x.start, x.end, y.at(v), y.at(v), x.start - 5, y.at(v) + 3.5, "end", t)
            for v, t in y.ticks
        ),
    ]
    tick = Markup(
        '<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>'
        '<text x="{:.1f}" y="{:.1f}" text-anchor="{}">{}</text>'
    )
    return Markup("").join(tick.format(*numbers) for numbers in ticks)


def _frame(width: float, height: float, title: str, body: Markup) -> Markup:
    return Markup(
        '<svg viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}"><title>{}</title>{}</svg>'
    ).format(width, height, title, title, body)


def _line(
    points: Sequence[tuple[int, float]], lengths: Sequence[int], x: Axis, y: Axis, css: str
) -> Markup:
    lines = Markup("").join(
        Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>').format(
            css + (" gap" if any(a < length < b for length in lengths) else ""),
            x.at(a), y.at(time_a), x.at(b), y.at(time_b),
        )
        for (a, time_a), (b, time_b) in pairwise(points)
    )  # fmt: skip
    dots = Markup("").join(
        Markup(
            '<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="2.6"><title>{}: {}</title></circle>'
        ).format(css, x.at(a), y.at(b), a, seconds_text(b))
        for a, b in points
    )
    return lines + dots


def panel(curve: Curve, times: Sequence[float]) -> Markup:
    """A small log-log chart of a curve and its baseline; a line is dashed across a gap.

    Args:
        curve: the curve; one of its lengths between two neighbouring points is a gap.
        times: those of all panels in a family, which share their axes.
    """
    x = log_axis(curve.lengths, 46, 214, base=2.0)
    y = log_axis(times, 128, 8, seconds_text)
    bar = Markup('<line class="bar" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>')
    body = _grid(x, y) + _line(curve.baseline, curve.lengths, x, y, "base")
    body += Markup("").join(bar.format(x.at(n), *map(y.at, ends)) for n, *ends in curve.bars)
    body += _line(curve.points, curve.lengths, x, y, "main")
    return _frame(222, 146, f"time of {curve.subject} over L = S", body)


def scatter(title: str, points: Sequence[tuple[str, float, int]]) -> Markup:
    """Names at their seconds (x) and bytes (y); one that would cover another is not written."""
    x = log_axis((seconds for _, seconds, _ in points), 56, 452, seconds_text)
    y = log_axis((float(count) for *_, count in points), 250, 20, bytes_text, base=2.0)
    mark = Markup(
        '<circle class="main" cx="{:.1f}" cy="{:.1f}" r="4"><title>{}: {}, {}</title></circle>'
    )
    body = _grid(x, y)
    places = {name: (x.at(seconds), y.at(count)) for name, seconds, count in points}
    taken = {name: [(a - 4, a + 4, b + 4)] for name, (a, b) in places.items()}
    for name, seconds, count in points:
        a, b = places[name]
        body += mark.format(a, b, name, seconds_text(seconds), bytes_text(count))
        width, others = 6.5 * len(name), [box for one in taken if one != name for box in taken[one]]
        for left, height in (
            (a, b - 7),
            (a - width, b - 7),
            (a + 8, b + 4),
            (a - 8 - width, b + 4),
        ):
            right = left + width
            apart = (end < left or right < at or abs(h - height) > 10 for at, end, h in others)
            if left > 56 and right < 480 and all(apart):
                taken[name].append((left, right, height))
                body += Markup('<text x="{:.1f}" y="{:.1f}">{}</text>').format(left, height, name)
                break
    return _frame(480, 272, title, body)


def heat_map(title: str, weights: Sequence[Sequence[float]], top: float = 1.0) -> Markup:
    """Weights of queries (rows) over keys (columns); opacity is the root of the share of ``top``.

    NaN and infinities have the colour of the class ``strange``.
    """
    cell = Markup(
        '<rect class="heat{}" x="{}" y="{}" width="15" height="15" fill-opacity="{:.3f}">'
        "<title>query {}, key {}: {:.4f}</title></rect>"
    )
    cells = []
    for row, line in enumerate(weights):
        for column, weight in enumerate(line):
            is_finite = math.isfinite(weight)
            share = min(1.0, max(0.0, weight) / top) ** 0.5 if is_finite and top > 0.0 else 0.0
            opacity = share if is_finite else 1.0
            css = "" if is_finite else " strange"
            cells.append(cell.format(css, 16 * column, 16 * row, opacity, row, column, weight))
    width = 16 * max((len(line) for line in weights), default=1)
    return _frame(width, 16 * max(len(weights), 1), title, Markup("").join(cells))
