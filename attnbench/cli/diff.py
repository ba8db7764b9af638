"""``attnbench diff``: whether two ways to compute the same differ by a bug or by rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.benchmark.machine.load import available_bytes
from attnbench.cli import options as option
from attnbench.cli.exit_codes import exit_code
from attnbench.cli.plugin_loading import load_plugins
from attnbench.cli.printing.tables import print_json, print_line, print_table
from attnbench.errors import UsageError
from attnbench.processes.pool import GIB, Task, call

_TIMEOUT_S = 600.0


def command(
    targets: Annotated[
        list[str], typer.Argument(help="Two addresses to compare, or one for a question.")
    ],
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            help="Implementations of a model of transformers, such as eager,sdpa,flex.",
        ),
    ] = None,
    paths: Annotated[
        str | None,
        typer.Option(
            "--paths",
            help="Ways to give a layer its tokens: of prefill (one call without a cache), "
            "cached (one call with it), decode (a token a call) and chunks (5 tokens a call).",
        ),
    ] = None,
    cache: Annotated[
        str | None,
        typer.Option("--cache", help="Caches of a model of transformers, such as dynamic,static."),
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="The dtype of both; or several, to compare them.")
    ] = "float32",
    batch: Annotated[
        bool, typer.Option("--batch", help="Compare items in a batch with each of them alone.")
    ] = False,
    inputs: option.Inputs = None,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", help="A safetensors file with the state dict of the module."),
    ] = None,
    logits: Annotated[
        bool,
        typer.Option(
            "--logits",
            help="The last axis of the output holds logits: also print the share of flipped "
            "argmaxes, and the KL divergence.",
        ),
    ] = False,
    style: option.Style = None,
    convention: option.Convention = None,
    as_json: option.AsJson = False,
    strict: option.Strict = False,
) -> int:
    """Say whether two ways to compute the same differ by rounding or by a bug.

    Both ways run on the same inputs, in their dtype and in float64. The difference is given in
    units: what one unit in the last place at every operation changes. If it is a bug, the first
    submodule and operation at which the ways part are named, and the exit code is 1. Of more than
    two ways, each is compared with the first.
    """
    question, values = _question(attention, paths, cache, dtype, batch)
    plugins = load_plugins(strict=strict)
    rows = _rows(
        targets=option.parse_targets(targets, style, convention) or [],
        question=question,
        values=values,
        dtype=dtype if question != "dtype" else values[0],
        inputs=str(inputs) if inputs else None,
        weights=str(weights) if weights else None,
        logits=logits,
    )
    if as_json:
        print_json({"rows": rows})
    else:
        _print_rows(rows)
    return exit_code(["failed" for row in rows if row["verdict"] == "bug"], plugins)


def _question(
    attention: str | None, paths: str | None, cache: str | None, dtype: str, batch: bool
) -> tuple[str | None, list[str]]:
    """The one question that the options ask, and its values; ``None`` to compare two subjects."""
    texts = {"attention": attention, "paths": paths, "cache": cache}
    questions = {name: text for name, text in texts.items() if text is not None}
    questions |= {"dtype": dtype} if "," in dtype else {}
    questions |= {"batch": ""} if batch else {}
    if len(questions) > 1:
        options = " and ".join(f"--{name}" for name in questions)
        raise UsageError(f"{options} ask two questions; ask one at a time.")
    for name, text in questions.items():
        values = [value.strip() for value in text.split(",") if value.strip()]
        if name != "batch" and len(values) < 2:
            raise UsageError(f"--{name} {text}: compares two or more, as A,B, but got one.")
        return name, values
    return None, []


def _rows(**arguments: Any) -> list[dict[str, Any]]:
    """The rows, computed in a child process that is ended before the system runs out of memory."""
    free_gib = 0.8 * available_bytes() / GIB
    function = "attnbench.answers.compared_ways:difference"
    rows: list[dict[str, Any]] = call(Task("diff", function, arguments, _TIMEOUT_S, free_gib))
    return rows


def _print_rows(rows: list[dict[str, Any]]) -> None:
    table = [
        {
            **{name: row[name] for name in ("first", "second", "call", "verdict")},
            **_numbers(row),
            **{key: row[key] for key in ("flipped_share", "kl_nats") if key in row},
        }
        for row in rows
    ]
    print_table(table)
    for row in rows:
        if row["verdict"] in _NOT_COMPARED:
            print_line(f"{row['call']}: {row['verdict']}: {row['reason']}.")
    compared = [row for row in rows if row["verdict"] not in _NOT_COMPARED]
    worst = max(compared, key=lambda row: (row["verdict"] == "bug", row["units"]))
    print_line(f"{worst['verdict']}: {worst['reason']}.", _STATUS[worst["verdict"]])
    if worst["parted_in"]:
        print_line(f"  first submodule whose outputs part: {worst['parted_in']}")
    for operation in worst["operations"]:
        print_line(f"  first operation that parts, {operation}")


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    is_compared = row["verdict"] not in _NOT_COMPARED
    return {
        "difference (units)": row["units"] if is_compared else "",
        "of it in float64": row["float64_units"] if is_compared else "",
    }


_NOT_COMPARED = ("not compared", "convention")
"""Verdicts of rows without a difference."""
_STATUS = {"bug": "failed", "rounding": "ok", "same": "ok"}
