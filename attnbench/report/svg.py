"""Charts as inline SVG without a library; colours are classes that follow the page's theme."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

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
    max_ticks: int = 5,
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
    step = max(1, math.ceil(len(powers) / max_ticks))
    return Axis(low, high, start, end, tuple((p, text(p)) for p in powers[::step]))


def _text(x: float, y: float, text: str, css: str = "", anchor: str = "middle") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" class="{}" text-anchor="{}">{}</text>').format(
        x, y, css, anchor, text
    )


def _grid(x: Axis, y: Axis) -> Markup:
    parts = [Markup("")]
    for value, text in x.ticks:
        place = x.at(value)
        parts.append(
            Markup(
                '<line class="grid" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>'
            ).format(place, y.start, y.end)
        )
        parts.append(_text(place, y.start + 13, text, "tick"))
    for value, text in y.ticks:
        place = y.at(value)
        parts.append(
            Markup(
                '<line class="grid" x1="{1:.1f}" x2="{2:.1f}" y1="{0:.1f}" y2="{0:.1f}"/>'
            ).format(place, x.start, x.end)
        )
        parts.append(_text(x.start - 5, place + 3.5, text, "tick", "end"))
    return Markup("").join(parts)


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


def panel(
    title: str,
    points: Sequence[tuple[int, float]],
    baseline: Sequence[tuple[int, float]],
    lengths: Sequence[int],
    times: Sequence[float],
) -> Markup:
    """A small log-log chart of time over length with the baseline; dashed across a gap.

    Args:
        title: title for screen readers.
        points, baseline: pairs of length and seconds.
        lengths, times: those of all panels in a group, which share their axes; one of these lengths
            between two neighbouring points is a gap.
    """
    x = log_axis(lengths, 46, 214, max_ticks=4, base=2.0)
    y = log_axis(times, 128, 8, seconds_text, max_ticks=4)
    body = _grid(x, y)
    if baseline:
        body += _line(baseline, lengths, x, y, "base")
    return _frame(222, 146, title, body + _line(points, lengths, x, y, "main"))


@dataclass(frozen=True)
class Mark:
    """A point of a scatter plot: coordinates, texts, and a class of the style sheet."""

    x: float
    y: float
    name: str
    detail: str
    css: str


def scatter(title: str, marks: Sequence[Mark], x_name: str, y_name: str) -> Markup:
    """Points on logarithmic axes; those of class ``front`` are labelled."""
    x = log_axis([m.x for m in marks], 66, 610, seconds_text)
    y = log_axis([max(m.y, 1.0) for m in marks], 300, 14, bytes_text, base=2.0)
    body = _grid(x, y)
    label_places: list[tuple[float, float]] = []
    for mark in sorted(marks, key=lambda m: m.css):
        place = x.at(mark.x), y.at(max(mark.y, 1.0))
        body += Markup(
            '<circle class="{}" cx="{:.1f}" cy="{:.1f}" r="5"><title>{}\n{}</title></circle>'
        ).format(mark.css, *place, mark.name, mark.detail)
        if mark.css == "front" and all(
            abs(place[1] - b) > 11 or abs(place[0] - a) > 120 for a, b in label_places
        ):
            is_left_half = place[0] < 480
            body += _text(
                place[0] + (9 if is_left_half else -9),
                place[1] + 4,
                mark.name,
                "name",
                "start" if is_left_half else "end",
            )
            label_places.append(place)
    body += _text(338, 334, x_name, "axis")
    body += Markup(
        '<text x="14" y="157" class="axis" text-anchor="middle" '
        'transform="rotate(-90 14 157)">{}</text>'
    ).format(y_name)
    return _frame(640, 342, title, body)


def _share(weight: float, top: float) -> float:
    """The opacity of a weight's colour; 1 for NaN and infinities."""
    if not math.isfinite(weight):
        return 1.0
    return min(1.0, max(0.0, weight) / top) ** 0.5 if top > 0.0 else 0.0


def heat_map(title: str, weights: Sequence[Sequence[float]], top: float = 1.0) -> Markup:
    """Weights of queries (rows) over keys (columns); opacity is the root of the share of ``top``.

    NaN and infinities have the colour of the class ``strange``.
    """
    size = 16
    cells = [Markup("")]
    for row, line in enumerate(weights):
        for column, weight in enumerate(line):
            is_finite = math.isfinite(weight)
            cells.append(
                Markup(
                    '<rect class="{}" x="{}" y="{}" width="{}" height="{}" '
                    'fill-opacity="{:.3f}"><title>query {}, key {}: {:.4f}</title></rect>'
                ).format(
                    "heat" if is_finite else "heat strange",
                    column * size,
                    row * size,
                    size - 1,
                    size - 1,
                    _share(weight, top),
                    row,
                    column,
                    weight,
                )
            )
    width = size * max((len(line) for line in weights), default=1)
    return _frame(width, size * max(len(weights), 1), title, Markup("").join(cells))
