"""``attnbench learn``: which scoring function learns what, over sizes and seeds."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench import UsageError
from attnbench.commands import (
    AsJson,
    Jobs,
    Task,
    Workers,
    check_writable,
    exit_code,
    load_plugins,
    parse_targets,
    print_json,
    print_table,
    progress,
    write_file,
)
from attnbench_classroom import intervals, run_files

_GRID = Path(__file__).with_name("experiment.toml")
_TIMEOUT_S = 600.0


def command(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            help="Addresses of subjects; by default those of the experiment.", show_default=False
        ),
    ] = None,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", help="File of runs; a run that stands there is not repeated."
        ),
    ] = Path("learn.jsonl"),
    figure: Annotated[
        Path | None, typer.Option("--figure", help="Picture to write: .png, .svg or .pdf.")
    ] = None,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", help="content, position, difference or alignment; all by default."),
    ] = None,
    size: Annotated[
        list[int] | None,
        typer.Option("--size", min=1, help="d, features of query and key; may be repeated."),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Trainings of each point.")] = 10,
    steps: Annotated[int, typer.Option("--steps", min=12, help="Steps of a training.")] = 150,
    jobs: Jobs = 0,
    as_json: AsJson = False,
) -> int:
    """Train scoring functions on small tasks, over sizes and seeds, and compare what they learn.

    A query asks for a value by content, by position, by a difference of positions, or by content
    within its part of the sequence. All else is the same for every subject. Prints accuracy with
    its 95 % interval over seeds, and cost. Runs are appended to a file as they end, so that an
    interrupted experiment goes on where it stopped.
    """
    grid = tomllib.loads(_GRID.read_text(encoding="utf-8"))
    if figure is not None and figure.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--figure {figure}: a picture ends in .png, .svg or .pdf.")
    for path, option in ((output, "--output"), (figure, "--figure")):
        if path is not None:
            check_writable(path, option)
    parse_targets(subjects)
    tasks = task or list(grid["subjects"])
    for name in tasks:
        if name not in grid["subjects"]:
            known = ", ".join(grid["subjects"])
            raise UsageError(f"--task {name}: there is no such task; there are {known}.")
    wanted = [
        {"subject": name, "task": one, "size": d, "seed": seed, "steps": steps}
        | {"batch": grid["batch"]}
        for one in tasks
        for d in size or grid["sizes"]
        for name in subjects or grid["subjects"][one]
        for seed in range(seeds)
    ]
    failed = _run_missing(wanted, output, jobs)
    asked = {run_files.key_of(run) for run in wanted}
    found = [run for run in run_files.read(output) if run_files.key_of(run) in asked]
    points = intervals.points(found)
    unfit = {run["subject"]: run["unfit"] for run in found if "unfit" in run}
    if figure is not None and points:
        from attnbench_classroom.learning_figure import draw

        write_file(figure, draw(found, figure.suffix[1:].lower()), "--figure")
    if as_json:
        print_json({"points": points, "unfit": unfit, "failed": failed})
    else:
        _print(points, unfit | failed)
    return exit_code(["crashed"] if failed else [])


def _run_missing(wanted: Sequence[Mapping[str, Any]], output: Path, jobs: int) -> dict[str, str]:
    """Run what does not stand in the file, one task a point; returns failures by subject."""
    there = {run_files.key_of(run) for run in run_files.read(output)}
    points: dict[tuple[Any, ...], list[int]] = {}
    names = ("task", "subject", "size", "steps", "batch")
    for run in wanted:
        if run_files.key_of(run) not in there:
            point = tuple(run[name] for name in names)
            points.setdefault(point, []).append(run["seed"])
    failed: dict[str, str] = {}
    total = sum(map(len, points.values()))
    if points:
        load_plugins(preload=("attnbench_classroom.training",))
    with Workers(jobs) as workers, progress(total, "learning") as advance:
        for point, missing in points.items():
            arguments = dict(zip(names, point, strict=True)) | {"seeds": missing}
            name = f"{arguments['subject']} on {arguments['task']} at {arguments['size']}"
            function = "attnbench_classroom.training:runs"
            workers.submit(Task(name, function, arguments, timeout_s=_TIMEOUT_S))
        for event in workers.events():
            if event.kind == "value":
                run_files.append(output, event.value)
                advance(1, event.task.name)
            elif event.error is not None:
                raise event.error
            elif event.kind != "done":
                failed[event.task.name] = event.reason.strip().splitlines()[-1]
    return failed


def _print(points: list[dict[str, Any]], left_out: Mapping[str, str]) -> None:
    rows = [
        {
            "task": point["task"],
            "subject": point["subject"],
            "d": point["size"],
            "seeds": point["seeds"],
            "accuracy": _percent(point, "accuracy"),
            "over the curve": _percent(point, "curve_mean"),
            "ms a step": point["step_ms"],
            "parameters": point["parameters"],
        }
        for point in points
    ]
    print_table(rows)
    for name, reason in left_out.items():
        typer.echo(f"{name} is left out: {reason}", err=True)


def _percent(point: Mapping[str, Any], name: str) -> str:
    return f"{100 * point[name]:.1f} ± {100 * point[f'{name}_half_interval']:.1f} %"
