"""Heat maps of weights side by side, all on one scale; what is not finite is grey."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

Rows = Sequence[Sequence[float]]

SUFFIXES = (".png", ".svg", ".pdf")
_MOST_LABELLED = 12
"""Most rows and columns of a panel into which its numbers are written."""


def picture(
    found: Mapping[str, Rows], suffix: str, tokens: Sequence[str] | None, what: str
) -> bytes:
    """A picture with one panel a table."""
    from matplotlib.figure import Figure

    sample = next(iter(found.values()))
    rows, columns = len(sample), len(sample[0])
    across = 1 if columns > 3 * rows else math.ceil(math.sqrt(len(found)))
    down = math.ceil(len(found) / across)
    cell = 0.45 if max(rows, columns) <= _MOST_LABELLED else 0.22
    width, height = min(cell * columns + 1.2, 9.0), min(cell * rows + 1.0, 8.0)
    figure = Figure(
        figsize=(max(across * width + 1.0, 5.0), down * height + 0.6), layout="constrained"
    )
    panels = draw(figure, found, across=across, sides=("query", "key"))
    for axes in panels if tokens is not None else ():
        places = range(len(tokens or ()))
        axes.set_xticks(places, tokens, rotation=90, parse_math=False, size=8)
        axes.set_yticks(places, tokens, parse_math=False, size=8)
    size = f"L = {rows}, S = {columns}"
    figure.suptitle(f"Weights of each query over the keys ({size}, {what})", parse_math=False)
    content = io.BytesIO()
    figure.savefig(content, format=suffix, dpi=150)
    return content.getvalue()


def draw(
    figure: Any, found: Mapping[str, Rows], *, across: int, sides: tuple[str, str]
) -> list[Any]:
    """Draw a panel for each table into a figure, with its numbers where there are few.

    Args:
        figure: figure of matplotlib.
        found: tables of weights by title.
        across: panels in a row.
        sides: what rows and columns are called.

    Returns:
        The axes of the panels.
    """
    import matplotlib
    from matplotlib.ticker import MaxNLocator

    weights = [value for panel in found.values() for row in panel for value in row]
    largest = max((value for value in weights if math.isfinite(value)), default=0.0) or 1.0
    colours = matplotlib.colormaps["viridis"].with_extremes(bad="0.6", over="0.6")
    grid = figure.subplots(-(-len(found) // across), across, squeeze=False)
    for axes in grid.flat[len(found) :]:
        axes.set_axis_off()
    panels = list(grid.flat[: len(found)])
    for axes, (name, values) in zip(panels, found.items(), strict=True):
        image = axes.imshow(values, vmin=0.0, vmax=largest, cmap=colours, aspect="auto")
        axes.set_title(name, parse_math=False)
        axes.set(ylabel=sides[0], xlabel=sides[1])
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(integer=True))
        few = max(len(values), len(values[0])) <= _MOST_LABELLED
        for i, row in enumerate(values if few else ()):
            for j, value in enumerate(row):
                light = value > 0.6 * largest or not math.isfinite(value)
                shade = "black" if light else "white"
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=shade, size=8)
    figure.colorbar(image, ax=grid, label="weight")
    return panels
