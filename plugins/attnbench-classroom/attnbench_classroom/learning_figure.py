"""The figure of a learning experiment: quality over d, learning curves, quality beside cost."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from attnbench_classroom.intervals import interval, points

_MARKERS = "os^vDPX*<>"


def draw(found: Sequence[Mapping[str, Any]], suffix: str) -> bytes:
    """A picture with one column a task.

    The rows: mean accuracy over the curve against d with its 95 % interval over seeds; learning
    curves at the largest d; the same mean against the seconds of the processor a step.
    """
    from matplotlib.figure import Figure

    rows = points(found)
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    subjects = list(dict.fromkeys(row["subject"] for row in rows))
    style = {name: _style(i) for i, name in enumerate(subjects)}
    figure = Figure(figsize=(4.1 * len(tasks), 9.5 + 0.2 * len(subjects)), layout="constrained")
    axes = figure.subplots(3, len(tasks), squeeze=False)
    for column, task in enumerate(tasks):
        of_task = [row for row in rows if row["task"] == task]
        largest = max(row["size"] for row in of_task)
        over_d, curves, costs = axes[:, column]
        for name in dict.fromkeys(row["subject"] for row in of_task):
            own = [row for row in of_task if row["subject"] == name]
            quality = [row["curve_mean"] for row in own]
            halves = [row["curve_mean_half_interval"] for row in own]
            sizes = [row["size"] for row in own]
            over_d.errorbar(sizes, quality, _finite(halves), label=name, capsize=2, **style[name])
            costs.plot([row["step_ms"] for row in own], quality, **style[name])
            runs = [r for r in found if (r["task"], r["subject"]) == (task, name)]
            _curve(curves, [r for r in runs if r["size"] == largest], style[name])
        over_d.set(title=task, xlabel="d, features of query and key", xscale="log")
        curves.set(title=f"learning curves at d = {largest}", xlabel="step")
        costs.set(title="quality beside cost", xlabel="ms of the processor a step")
        over_d.set_xticks([], minor=True)
        over_d.set_xticks(sorted({row["size"] for row in of_task}))
        over_d.set_xticklabels(sorted({row["size"] for row in of_task}))
        for axis in axes[:, column]:
            axis.set_ylim(0, 1.02)
            axis.grid(alpha=0.3)
    for axis, label in zip(axes[:, 0], ("mean over the curve", "accuracy", "mean"), strict=True):
        axis.set_ylabel(f"{label}, 95 % interval" if label == "accuracy" else f"accuracy, {label}")
    legends = [axis.get_legend_handles_labels() for axis in axes[0]]
    shown = {
        name: line for lines, names in legends for line, name in zip(lines, names, strict=True)
    }
    figure.legend(shown.values(), shown, loc="outside lower center", ncols=min(4, len(shown)))
    content = io.BytesIO()
    figure.savefig(content, format=suffix, dpi=80)
    return content.getvalue()


def _style(number: int) -> dict[str, Any]:
    """Colour, marker and dashes of a subject, different for each of twenty."""
    again, which = divmod(number, len(_MARKERS))
    line = ":" if again else "-"
    return {"color": f"C{which}", "marker": _MARKERS[which], "ls": line, "ms": 4, "lw": 1.2}


def _curve(axis: Any, runs: Sequence[Mapping[str, Any]], style: Mapping[str, Any]) -> None:
    """The mean curve of some seeds, with a band as wide as its interval."""
    if not runs or "curve" not in runs[0]:
        return
    steps = [step for step, _ in runs[0]["curve"]]
    spread = [interval([run["curve"][i][1] for run in runs]) for i in range(len(steps))]
    means, halves = [mean for mean, _ in spread], _finite([half for _, half in spread])
    axis.plot(steps, means, **style)
    low, high = ([m + sign * h for m, h in zip(means, halves, strict=True)] for sign in (-1.0, 1.0))
    axis.fill_between(steps, low, high, color=style["color"], alpha=0.15, lw=0)


def _finite(halves: Sequence[float]) -> list[float]:
    return [half if half < float("inf") else 0.0 for half in halves]
