"""``attnbench learn``: how well each subject learns small tasks, beside what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.cli.exit_codes import exit_code
from attnbench.cli.options import AsJson, Jobs, Strict, Targets
from attnbench.cli.tables import print_json, print_table, progress
from attnbench.errors import UnknownNameError, UsageError, nearest

__all__ = ["TASK_NAMES", "command", "train"]

TASK_NAMES = ("lookup", "reverse", "previous", "commonest")
"""Those of :data:`attnbench.benchmark.learning.TASKS`, which imports torch."""


def command(
    targets: Targets = None,
    tasks: Annotated[
        list[str] | None,
        typer.Option("--task", help="lookup, reverse, previous or commonest; all by default."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Trainings of each.")] = 5,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps of a training.")] = 300,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="A picture: .png, .svg or .pdf.")
    ] = None,
    jobs: Jobs = 1,
    as_json: AsJson = False,
    strict: Strict = False,
) -> int:
    """Train subjects on small tasks with one budget; accuracy with intervals, time and memory.

    Every scoring function and mechanism by default. Accuracy is on sequences not seen before, as
    the mean over seeds and half of its 95 % interval.
    """
    from attnbench.cli.survey import ask, load_plugins

    for name in tasks or ():
        if name not in TASK_NAMES:
            raise UnknownNameError(f"no task is called {name!r}. {nearest(name, TASK_NAMES)}")
    if output is not None and output.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--output {output}: a picture ends in .png, .svg or .pdf.")
    if output is not None and not output.resolve().parent.is_dir():
        raise UsageError(f"--output {output}: there is no folder {output.resolve().parent}.")
    plugins = load_plugins(strict=strict)
    if not targets:  # a kernel learns what its scoring function does
        known = ask("subject_rows", targets=None)
        targets = [row["subject"] for row in known if row["kind"] != "kernel"]
    rows, left_out, broke = _trained(targets, tasks, seeds, steps, jobs)
    if output is not None and rows:
        _draw(rows, output)
    if as_json:
        print_json({"steps": steps, "seeds": seeds, "learned": rows, "left_out": left_out})
    else:
        print_table(
            _table(rows), right=sorted({row["task"] for row in rows}), empty="Nothing was trained."
        )
        for name, reason in left_out.items():
            typer.echo(f"{name} is left out: {reason}", err=True)
        if output is not None and rows:
            typer.echo(f"Wrote {output}.")
    broken = any(row["status"] == "failed" for row in plugins)
    return exit_code(["crashed"] if broke else [], plugin_failed=broken)


def train(target: str, tasks: list[str] | None, seeds: int, steps: int) -> Iterator[dict[str, Any]]:
    """What a worker does: one target on all tasks with all seeds; one row a task.

    A row of a subject that cannot be trained holds the ``reason``.
    """
    from attnbench.benchmark.learning import Budget, interval, learn, unfit
    from attnbench.subject.lookup import resolve

    for subject in resolve(target):
        reason = unfit(subject)
        if reason is not None:
            yield {"subject": subject.name, "reason": reason}
            continue
        for task in tasks or TASK_NAMES:
            done = [learn(subject, task, seed, Budget(steps=steps)) for seed in range(seeds)]
            accuracy, half = interval([one.accuracy for one in done])
            yield {
                "subject": subject.name,
                "task": task,
                "accuracy": accuracy,
                "half_interval": half,
                "step_s": min(one.time_s for one in done),
                "peak_bytes": max(one.peak_bytes for one in done),
                "runs": [asdict(one) for one in done],
            }


def _trained(
    targets: list[str], tasks: list[str] | None, seeds: int, steps: int, jobs: int
) -> tuple[list[dict[str, Any]], dict[str, str], bool]:
    """Rows in the order of the targets; what is left out, and why; whether any target broke."""
    from attnbench.processes.pool import Task, Workers

    found: dict[str, list[dict[str, Any]]] = {name: [] for name in targets}
    left_out: dict[str, str] = {}
    broke = False
    options = {"tasks": tasks, "seeds": seeds, "steps": steps}
    with Workers(jobs=jobs) as workers, progress(len(targets), "learning") as advance:
        for name in targets:
            arguments = {"target": name, **options}
            workers.submit(Task(name, "attnbench.cli.learn:train", arguments, timeout_s=1800.0))
        for event in workers.events():
            if event.kind == "value" and "reason" in event.value:
                left_out[event.value["subject"]] = event.value["reason"]
            elif event.kind == "value":
                found[event.task.name].append(event.value)
            elif event.error is not None:
                raise event.error
            else:
                advance(1, event.task.name)
                if event.kind != "done":
                    broke = True
                    left_out[event.task.name] = event.reason.strip().splitlines()[-1]
    return [row for rows in found.values() for row in rows], left_out, broke


def _table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a subject: accuracy by task, then cost; the best on average first."""
    table: dict[str, dict[str, Any]] = {}
    for row in rows:
        line = table.setdefault(row["subject"], {"subject": row["subject"]})
        half = "" if row["half_interval"] is None else f" ± {100 * row['half_interval']:.0f}"
        line[row["task"]] = f"{100 * row['accuracy']:.0f}{half} %"
    for name, line in table.items():
        own = [row for row in rows if row["subject"] == name]
        line["mean_accuracy"] = sum(row["accuracy"] for row in own) / len(own)
        line["step_ms"] = 1e3 * min(row["step_s"] for row in own)
        line["peak_MiB"] = max(row["peak_bytes"] for row in own) / 2**20
    return sorted(table.values(), key=lambda line: -line["mean_accuracy"])


def _draw(rows: list[dict[str, Any]], output: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    order = [line["subject"] for line in _table(rows)][::-1]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    panels = [(task, "accuracy", 1.0) for task in tasks]
    costs = [("time of a step", "step_s", 1e3), ("peak memory of a step", "peak_bytes", 2**-20)]
    figure = Figure(
        figsize=(2.2 * (len(panels) + 2) + 3, 0.26 * len(order) + 1.2), layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, len(panels) + 2, sharey=True, squeeze=False)[0]
    for axis, (title, column, unit) in zip(axes, [*panels, *costs], strict=True):
        own = [row for row in rows if column != "accuracy" or row["task"] == title]
        pick = max if column == "peak_bytes" else min
        values = [pick(row[column] for row in own if row["subject"] == n) * unit for n in order]
        halves = None
        if column == "accuracy":
            spread = {row["subject"]: row["half_interval"] or 0.0 for row in own}
            halves = [spread[name] for name in order]
        axis.barh(order, values, xerr=halves, color="C0" if halves is not None else "0.6")
        axis.set_title(title, size=10)
        axis.set_xlabel({"step_s": "ms", "peak_bytes": "MiB"}.get(column, "accuracy"))
        if column == "accuracy":
            axis.set_xlim(0, 1)
            axis.axvline(1 / 8, color="0.4", ls=":", lw=1)  # by chance, of 8 symbols
    figure.savefig(output, dpi=110)
