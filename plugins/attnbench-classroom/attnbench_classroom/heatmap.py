"""``attnbench heatmap``: a picture of several subjects' weights on the same query and keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench import UsageError
from attnbench.commands import (
    Address,
    AsJson,
    Inputs,
    Strict,
    Task,
    Workers,
    check_writable,
    exit_code,
    load_plugins,
    parse_targets,
    print_json,
    write_file,
)
from attnbench_classroom import weight_pictures

_INSIDE = "attnbench_classroom.weight_tables"
_TARGETS = ["additive(hidden_size=8)", "scaled_dot"]


def command(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="Addresses of subjects; by default 'additive(hidden_size=8)' and scaled_dot.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="To write: .png, .svg or .pdf.")
    ] = Path("heatmap.png"),
    q_len: Annotated[int, typer.Option("--q-len", min=1, help="L, number of queries.")] = 2,
    kv_len: Annotated[int, typer.Option("--kv-len", min=1, help="S, number of keys.")] = 10,
    size: Annotated[int, typer.Option("--size", min=1, help="E, features of each.")] = 20,
    seed: Annotated[int, typer.Option("--seed", help="Seed of query, keys and parameters.")] = 0,
    inputs: Inputs = None,
    item: Annotated[
        str | None,
        typer.Option("--item", help="Item and head of the inputs to draw, such as 0,3."),
    ] = None,
    heads: Annotated[
        bool, typer.Option("--heads", help="Draw every head of the inputs, one panel each.")
    ] = False,
    text: Annotated[
        str | None,
        typer.Option(
            "--text", help="Your own text; its words are queries and keys, and label them."
        ),
    ] = None,
    as_json: AsJson = False,
    strict: Strict = False,
) -> int:
    """Draw the weights of several subjects on the same query and keys.

    Each panel is a subject, each row a query, each column a key; all panels share one colour scale.
    Subjects that fail are left out, with a message.
    """
    suffix = output.suffix.lower()
    if suffix not in weight_pictures.SUFFIXES:
        raise UsageError(
            f"--output {output}: a picture ends in .png, .svg or .pdf; --json prints the numbers."
        )
    tokens = _words(text, inputs)
    check_writable(output, "--output")
    plugins = load_plugins(strict=strict)
    found, failed = _weights(
        parse_targets(targets or _TARGETS) or [],
        sizes=(q_len, kv_len, size),
        seed=seed,
        inputs=str(inputs) if inputs else None,
        item=_item(item),
        heads=heads,
        tokens=tokens,
    )
    if found:
        what = str(inputs or f"E = {size}, seed {seed}")
        content = weight_pictures.picture(found, suffix[1:], tokens, what)
        write_file(output, content, "--output")
    for line in _strange(found):
        typer.echo(f"warning: {line}", err=True)
    if as_json:
        shown = {} if tokens is None else {"tokens": tokens}
        print_json({"output": str(output), "weights": found, "failed": failed} | shown)
    else:
        for name, reason in failed.items():
            typer.echo(f"{name} is left out: {reason}", err=True)
        if found:
            typer.echo(f"Wrote {output}: {', '.join(found)}.")
    return exit_code(["crashed"] if failed else [], plugins)


def _item(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--item {text}: write indices, such as 0 or 0,3.") from None


def _words(text: str | None, inputs: Path | None) -> list[str] | None:
    """The words of a text, after a look at whether the options go together."""
    if text is not None and inputs is not None:
        raise UsageError("--text and --inputs both say what is looked at; give one.")
    if text is not None and not text.split():
        raise UsageError("--text is empty; write some words.")
    return None if text is None else text.split()


def _weights(
    targets: list[Address], **arguments: Any
) -> tuple[dict[str, list[list[float]]], dict[str, str]]:
    """Weights by subject, and errors by target; each target runs in its own process."""
    found: dict[str, dict[str, list[list[float]]]] = {}
    failed: dict[str, str] = {}
    with Workers(jobs=0) as workers:
        for target in targets:
            options = {"target": target, **arguments}
            workers.submit(Task(str(target), f"{_INSIDE}:of_subject", options, timeout_s=60.0))
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
