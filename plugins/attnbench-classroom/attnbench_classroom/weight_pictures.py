"""Heat maps of weights side by side."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

Rows = list[list[float]]

SUFFIXES = (".png", ".svg", ".pdf")
_MOST_LABELLED = 12


def picture(
    found: Mapping[str, Rows], suffix: str, tokens: Sequence[str] | None, what: str
) -> bytes:
    """A picture with one panel a table, all on one scale; what is not finite is grey."""
    from matplotlib.figure import Figure

    sample = next(iter(found.values()))
    rows, columns = len(sample), len(sample[0])
    numbered = columns <= _MOST_LABELLED and rows <= _MOST_LABELLED
    across = 1 if columns > 3 * rows else math.ceil(math.sqrt(len(found)))
    down = math.ceil(len(found) / across)
    cell = 0.45 if numbered else 0.22
    width, height = min(cell * columns + 1.2, 9.0), min(cell * rows + 1.0, 8.0)
    figure = Figure(
        figsize=(max(across * width + 1.0, 5.0), down * height + 0.6), layout="constrained"
    )
    draw(figure, found, across, numbered=numbered, tokens=tokens)
    size = f"L = {rows}, S = {columns}"
    figure.suptitle(f"Weights of each query over the keys ({size}, {what})", parse_math=False)
    content = io.BytesIO()
    figure.savefig(content, format=suffix, dpi=150)
    return content.getvalue()


def draw(
    figure: Any,
    found: Mapping[str, Rows],
    across: int,
    *,
    numbered: bool,
    tokens: Sequence[str] | None = None,
    names: tuple[str, str] = ("query", "key"),
) -> None:
    """Draw one panel a table on a figure, all on one scale; what is not finite is grey."""
    import matplotlib

    weights = [value for panel in found.values() for row in panel for value in row]
    largest = max((value for value in weights if math.isfinite(value)), default=0.0) or 1.0
    colours = matplotlib.colormaps["viridis"].with_extremes(bad="0.6", over="0.6")
    panels = figure.subplots(math.ceil(len(found) / across), across, squeeze=False)
    for axes in panels.flat[len(found) :]:
        axes.set_axis_off()
    for axes, (name, values) in zip(panels.flat, found.items(), strict=False):
        image = axes.imshow(values, vmin=0.0, vmax=largest, cmap=colours, aspect="auto")
        axes.set_title(name, parse_math=False)
        axes.set(xlabel=names[1], ylabel=names[0])
        _name_ticks(axes.set_xticks, tokens, len(values[0]), rotation=90)
        _name_ticks(axes.set_yticks, tokens, len(values), rotation=0)
        if numbered:
            _write_numbers(axes, values, largest)
    figure.colorbar(image, ax=panels, label="weight")


def _write_numbers(axes: Any, values: Rows, largest: float) -> None:
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            light = value > 0.6 * largest or not math.isfinite(value)
            shade = "black" if light else "white"
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=shade, size=8)


def _name_ticks(place: Any, tokens: Sequence[str] | None, count: int, rotation: int) -> None:
    if tokens is not None and len(tokens) == count:
        place(range(count), tokens, rotation=rotation, parse_math=False, size=8)
    else:
        place(list(range(0, count, -(-count // _MOST_LABELLED))))
