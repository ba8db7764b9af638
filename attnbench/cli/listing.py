"""``attnbench list``: the installed subjects."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Annotated, Any

import typer
from packaging.utils import canonicalize_name

from attnbench.cases.case import Case
from attnbench.cli import options as option
from attnbench.cli.exit_codes import exit_code
from attnbench.cli.plugin_loading import ask, load_plugins
from attnbench.cli.printing.tables import print_json, print_table
from attnbench.errors import UsageError
from attnbench.specs import DTYPES

_CASE = Case((8, 8), 256, 256, 64, 64, 64)


def command(
    targets: option.Targets = None,
    case: Annotated[
        str, typer.Option("--case", help="Id of the case for which kernels are chosen.")
    ] = _CASE.id,
    invariants: Annotated[
        bool, typer.Option("--invariants", help="List the invariants and laws instead.")
    ] = False,
    as_json: option.AsJson = False,
    strict: option.Strict = False,
) -> int:
    """List the subjects: scoring functions, kernels, mechanisms and layers.

    The column auto shows what attend(kernel="auto") runs for the case: the kernel with the highest
    priority that supports it, or the plain path. With addresses, all details of each are shown.
    """
    Case.from_id(case)
    if invariants and targets:
        raise UsageError(
            f"--invariants lists the invariants of all subjects, but {targets[0]} is named, too. "
            f"'attnbench check {targets[0]} --verbose' shows which of them apply to it."
        )
    plugins = load_plugins(strict=strict)
    if invariants:
        rows = ask("invariant_rows")
    else:
        rows = ask("subject_rows", targets=option.parse_targets(targets), case_id=case)
        rows = [{**row, "target": str(row["target"])} for row in rows]
    if as_json:
        print_json(rows)
    elif invariants:
        print_table(rows)
    elif targets:
        for row in rows:
            _show(row, case)
    else:
        _suggest({canonicalize_name(row["distribution"]) for row in plugins})
        print_table(
            [
                {
                    **{name: row[name] for name in ("subject", "kind", "formula")},
                    "sizes": "Eq = Ek" if row["equal_sizes"] else "",
                    "dtypes": _dtypes(row["dtypes"]),
                    "laws": ", ".join(row["laws"]),
                    "auto": _auto(row["kernels"]) if row["kind"] == "scoring" else "",
                }
                for row in rows
            ]
        )
    return exit_code((), plugins)


def _suggest(installed: set[str]) -> None:
    """Say what a distribution that is not installed would make faster."""
    text = resources.files("attnbench.registry").joinpath("optional.toml").read_text("utf-8")
    for distribution, gain in tomllib.loads(text).items():
        if distribution not in installed:
            typer.echo(f"With 'pip install {distribution}' {gain}.", err=True)


def _dtypes(names: list[str]) -> str:
    return "all" if set(names) == set(DTYPES) else ", ".join(names)


def _auto(kernels: list[dict[str, Any]]) -> str:
    return next((k["kernel"] for k in kernels if k["reason"] is None), "plain")


def _sizes(row: dict[str, Any]) -> str:
    if row["layer"] is not None:
        return "one"
    return "query_size == key_size" if row["equal_sizes"] else "may differ"


def _layer_facts(layer: dict[str, Any]) -> dict[str, str]:
    cache = "none"
    if layer["cache"] is not None:
        cache = ", ".join(["new", *layer["cache"]["operations"]])
        if layer["cache"]["capacity"] is not None:
            cache += f"; {layer['cache']['capacity']} slots"
    return {
        "causal": "yes" if layer["causal"] else "no",
        "window": str(layer["window"] or "none"),
        "accepts": ", ".join(layer["accepts"]) or "none",
        "cache": cache,
    }


def _show(row: dict[str, Any], case: str) -> None:
    typer.echo(f"{row['subject']} ({row['kind']})")
    facts = {
        "formula": row["formula"],
        "source": row["source"],
        "sizes": _sizes(row),
        "dtypes": ", ".join(row["dtypes"]),
        "laws": ", ".join(row["laws"]) or "none",
    }
    if row["layer"] is not None:
        facts |= _layer_facts(row["layer"])
    for name, text in facts.items():
        typer.echo(f"  {name:8}{text}")
    for name, reason in row["exempt"].items():
        typer.echo(f"  exempt  from {name}: {reason}")
    if row["kind"] == "scoring":
        typer.echo(f"  kernels at {case}, in the order of kernel='auto':")
        auto = _auto(row["kernels"])
        for kernel in [*row["kernels"], {"kernel": "plain", "reason": None, "priority": None}]:
            mark = " (taken)" if kernel["kernel"] == auto else ""
            rank = f"priority {kernel['priority']}" if kernel["priority"] is not None else "always"
            typer.echo(f"    {kernel['kernel']:14}{kernel['reason'] or rank}{mark}")
            if kernel.get("runs_as"):
                typer.echo(f"    {'':14}runs as: {kernel['runs_as']}")
