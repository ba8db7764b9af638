"""``attnbench heatmap``: a picture of several subjects' weights on the same query and keys."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.cli.exit_codes import exit_code
from attnbench.cli.options import AsJson, Strict, parse_targets
from attnbench.cli.printing.outputs import check_writable, write_file
from attnbench.cli.printing.tables import print_json
from attnbench.errors import UsageError
from attnbench.registry.address import Address

_TARGETS = ["additive(hidden_size=8)", "scaled_dot"]
_MOST_LABELLED = 12


def command(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="Addresses of subjects; by default 'additive(hidden_size=8)' and scaled_dot.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Picture to write: .png, .svg or .pdf.")
    ] = Path("heatmap.png"),
    q_len: Annotated[int, typer.Option("--q-len", min=1, help="L, number of queries.")] = 2,
    kv_len: Annotated[int, typer.Option("--kv-len", min=1, help="S, number of keys.")] = 10,
    size: Annotated[int, typer.Option("--size", min=1, help="E, features of each.")] = 20,
    seed: Annotated[int, typer.Option("--seed", help="Seed of query, keys and parameters.")] = 0,
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", help="A safetensors file with your own query, key and value."),
    ] = None,
    item: Annotated[
        str | None,
        typer.Option("--item", help="Item and head of the inputs to draw, such as 0,3."),
    ] = None,
    as_json: AsJson = False,
    strict: Strict = False,
) -> int:
    """Draw the weights of several subjects on the same query and keys.

    Each panel is a subject, each row a query, each column a key; all panels share one colour scale.
    Subjects that fail are left out, with a message.
    """
    from attnbench.cli.plugin_loading import load_plugins

    if output.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise UsageError(f"--output {output}: a picture ends in .png, .svg or .pdf.")
    check_writable(output, "--output")
    chosen = _item(item)
    plugins = load_plugins(strict=strict)
    found, failed = _weights(
        parse_targets(targets or _TARGETS) or [],
        sizes=(q_len, kv_len, size),
        seed=seed,
        inputs=str(inputs) if inputs else None,
        item=chosen,
    )
    if found:
        what = str(inputs) if inputs else f"E = {size}, seed {seed}"
        write_file(output, _picture(found, output.suffix[1:].lower(), what), "--output")
    for line in _strange(found):
        typer.echo(f"warning: {line}", err=True)
    if as_json:
        print_json({"output": str(output), "weights": found, "failed": failed})
    else:
        for name, reason in failed.items():
            typer.echo(f"{name} is left out: {reason}", err=True)
        if found:
            typer.echo(f"Wrote {output}: {', '.join(found)}.")
    broken = any(row["status"] == "failed" for row in plugins)
    return exit_code(["crashed"] if failed else [], plugin_failed=broken)


def _item(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--item {text}: write indices, such as 0 or 0,3.") from None


def _weights(
    targets: list[Address], **arguments: Any
) -> tuple[dict[str, list[list[float]]], dict[str, str]]:
    """Weights by subject, and errors by target; each target runs in its own process."""
    from attnbench.processes.pool import Task, Workers

    found: dict[str, dict[str, list[list[float]]]] = {}
    failed: dict[str, str] = {}
    with Workers(jobs=0) as workers:
        for target in targets:
            options = {"target": target, **arguments}
            workers.submit(
                Task(str(target), "attnbench.checking.tasks:weights", options, timeout_s=60.0)
            )
        for event in workers.events():
            if event.kind == "value":
                found[event.task.name] = event.value
            elif event.error is not None:
                raise event.error
            elif event.kind != "done":
                failed[event.task.name] = event.reason.strip().splitlines()[-1]
    ordered = {name: rows for t in targets for name, rows in found.get(str(t), {}).items()}
    return ordered, failed


def _strange(found: dict[str, list[list[float]]]) -> Iterator[str]:
    """A message for each subject with weights that are not finite, which are drawn grey."""
    for name, rows in found.items():
        count = sum(not math.isfinite(value) for row in rows for value in row)
        if count:
            total = sum(map(len, rows))
            yield f"{count} of {total} weights of {name} are NaN or infinite; they are grey."


def _picture(found: dict[str, list[list[float]]], suffix: str, what: str) -> bytes:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sample = next(iter(found.values()))
    rows, columns = len(sample), len(sample[0])
    labelled = columns <= _MOST_LABELLED and rows <= _MOST_LABELLED
    across = 1 if columns > 3 * rows else math.ceil(math.sqrt(len(found)))
    down = math.ceil(len(found) / across)
    cell = 0.45 if labelled else 0.22
    width, height = min(cell * columns + 1.2, 9.0), min(cell * rows + 1.0, 8.0)
    figure = Figure(
        figsize=(max(across * width + 1.0, 5.0), down * height + 0.6), layout="constrained"
    )
    FigureCanvasAgg(figure)
    weights = [value for panel in found.values() for row in panel for value in row]
    largest = max((value for value in weights if math.isfinite(value)), default=0.0) or 1.0
    colours = matplotlib.colormaps["viridis"].with_extremes(bad="0.6", over="0.6")
    panels = figure.subplots(down, across, squeeze=False)
    for axes in panels.flat[len(found) :]:
        axes.set_axis_off()
    for axes, (name, values) in zip(panels.flat, found.items(), strict=False):
        image = axes.imshow(values, vmin=0.0, vmax=largest, cmap=colours, aspect="auto")
        axes.set(title=name, xlabel="key", ylabel="query")
        axes.set_xticks(_ticks(columns))
        axes.set_yticks(_ticks(rows))
        if labelled:
            for i, row in enumerate(values):
                for j, value in enumerate(row):
                    light = value > 0.6 * largest or not math.isfinite(value)
                    shade = "black" if light else "white"
                    axes.text(j, i, f"{value:.2f}", ha="center", va="center", color=shade, size=8)
    figure.colorbar(image, ax=panels, label="weight")
    figure.suptitle(f"Weights of each query over the keys (L = {rows}, S = {columns}, {what})")
    content = io.BytesIO()
    figure.savefig(content, format=suffix, dpi=150)
    return content.getvalue()


def _ticks(count: int, most: int = 12) -> list[int]:
    return list(range(0, count, -(-count // most)))
