"""``attnbench diff``: whether two ways to compute the same differ by a bug or by rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import psutil
import typer

from attnbench import UsageError
from attnbench import commands as kit

_TIMEOUT_S = 600.0
_NOT_COMPARED = ("not compared", "convention")
"""Verdicts of rows without a difference."""
_STATUS = {"bug": "failed", "rounding": "ok", "same": "ok"}


def command(
    targets: Annotated[
        list[str], typer.Argument(help="Two addresses to compare, or one for a question.")
    ],
    paths: Annotated[
        str | None,
        typer.Option(
            "--paths",
            help="Ways to give a layer its tokens: of prefill (one call without a cache), "
            "cached (one call with it), decode (a token a call) and chunks (5 tokens a call).",
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="The dtype of both; or several, to compare them.")
    ] = "float32",
    batch: Annotated[
        bool, typer.Option("--batch", help="Compare items in a batch with each of them alone.")
    ] = False,
    inputs: kit.Inputs = None,
    weights: Annotated[
        Path | None,
        typer.Option("--weights", help="A safetensors file with the state dict of the module."),
    ] = None,
    style: kit.Style = None,
    convention: kit.Convention = None,
    as_json: kit.AsJson = False,
    strict: kit.Strict = False,
) -> int:
    """Say whether two ways to compute the same differ by rounding or by a bug.

    Both ways run on the same inputs, in their dtype and in float64. The difference is given in
    units: what one unit in the last place at every operation changes. If it is a bug, the first
    submodule and operation at which the ways part are named, and the exit code is 1. Of more than
    two ways, each is compared with the first.
    """
    question, values = _question(paths, dtype, batch)
    plugins = kit.load_plugins(strict=strict)
    rows = _rows(
        targets=kit.parse_targets(targets, style, convention) or [],
        question=question,
        values=values,
        dtype=dtype if question != "dtype" else values[0],
        inputs=str(inputs) if inputs else None,
        weights=str(weights) if weights else None,
    )
    if as_json:
        kit.print_json({"rows": rows})
    else:
        _print_rows(rows)
    return kit.exit_code(["failed" for row in rows if row["verdict"] == "bug"], plugins)


def _question(paths: str | None, dtype: str, batch: bool) -> tuple[str | None, list[str]]:
    """The one question that the options ask, and its values; ``None`` to compare two subjects."""
    questions = {"paths": paths} if paths is not None else {}
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
    free_gib = 0.8 * psutil.virtual_memory().available / 2**30
    function = "attnbench_answers.comparisons:difference"
    rows: list[dict[str, Any]] = kit.call(
        kit.Task("diff", function, arguments, _TIMEOUT_S, free_gib)
    )
    return rows


def _print_rows(rows: list[dict[str, Any]]) -> None:
    kit.print_table(
        [
            {name: row[name] for name in ("first", "second", "call", "verdict")} | _numbers(row)
            for row in rows
        ]
    )
    for row in rows:
        if row["verdict"] in _NOT_COMPARED:
            kit.print_line(f"{row['call']}: {row['verdict']}: {row['reason']}.")
    compared = [row for row in rows if row["verdict"] not in _NOT_COMPARED]
    worst = max(compared, key=lambda row: (row["verdict"] == "bug", row["units"]))
    kit.print_line(f"{worst['verdict']}: {worst['reason']}.", _STATUS[worst["verdict"]])
    if worst["parted_in"]:
        kit.print_line(f"  first submodule whose outputs part: {worst['parted_in']}")
    for operation in worst["operations"]:
        kit.print_line(f"  first operation that parts, {operation}")


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    is_compared = row["verdict"] not in _NOT_COMPARED
    return {
        "difference (units)": row["units"] if is_compared else "",
        "of it in float64": row["float64_units"] if is_compared else "",
    }
