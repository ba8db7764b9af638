"""``attnbench drift``: does the batch, a chunk, a repetition or a thread change the output?"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from attnbench import commands as kit
from attnbench.errors import PluginError, first_line

_TIMEOUT_S = 300.0


def command(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="Addresses of subjects. By default scaled_dot/fused, which is torch's own.",
            show_default=False,
        ),
    ] = None,
    style: kit.Style = None,
    convention: kit.Convention = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option("--dtype", help="A dtype; may be repeated. By default float32 and bfloat16."),
    ] = None,
    device: kit.Device = "cpu",
    inputs: kit.Inputs = None,
    as_json: kit.AsJson = False,
    strict: kit.Strict = False,
) -> int:
    """Grade whether the batch, its order, chunks, repetition or threads change the output.

    Each is bitwise (no bit differs), rounding (differences that rounding explains) or neither, with
    the size at which it begins and the largest difference in units in the last place. A law that
    the subject declares has to be bitwise: otherwise the exit code is 1.
    """
    plugins = kit.load_plugins(strict=strict)
    addresses = kit.parse_targets(targets, style, convention) or [
        kit.Address("scaled_dot", "fused")
    ]
    rows, errors = _rows(
        addresses, dtypes=dtype, device=device, inputs=str(inputs) if inputs else None
    )
    if as_json:
        kit.print_json({"rows": rows, "failed": errors})
    else:
        _print_rows(rows, errors)
    statuses = ["crashed"] if errors else []
    statuses += ["failed" for row in rows if row["declared"] and row["grade"] in _NOT_BITWISE]
    return kit.exit_code(statuses, plugins)


_NOT_BITWISE = ("rounding", "neither")


def _rows(
    targets: list[kit.Address], *, dtypes: list[str] | None, **arguments: Any
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The rows of all targets, each graded in its own process, and the errors of those without."""
    if dtypes:
        arguments["dtypes"] = dtypes
    rows: list[dict[str, Any]] = []
    errors: dict[str, str] = {}
    function = "attnbench_answers.reproducibility:drift"
    for target in targets:
        try:
            rows += kit.call(
                kit.Task(str(target), function, {"target": target, **arguments}, _TIMEOUT_S)
            )
        except PluginError as error:
            errors[str(target)] = error.raised or first_line(str(error))
    return rows, errors


def _print_rows(rows: list[dict[str, Any]], errors: dict[str, str]) -> None:
    table = [
        {
            **{name: row[name] for name in ("subject", "law", "dtype", "grade")},
            "begins at": row["begins"],
            "units": row["units"],
        }
        for row in rows
    ]
    kit.print_table(table, empty="No subject supports these dtypes.")
    for row in rows:
        if row["declared"] and row["grade"] in _NOT_BITWISE:
            typer.echo(f"{row['subject']} declares {row['law']}, but {row['place']}")
        elif row["reason"] and row["grade"] == "not tried":
            typer.echo(f"{row['subject']}: {row['law']} was not tried: {row['reason']}")
    for name, reason in errors.items():
        typer.echo(f"{name} is left out: {reason}", err=True)
