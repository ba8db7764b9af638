"""``attnbench list``: the installed subjects, or invariants, plugins, and the machine."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Annotated, Any

import typer
from packaging.utils import canonicalize_name

from attnbench.cases.case import Case
from attnbench.cli import options as option
from attnbench.cli.exit_codes import OK, VIOLATED, exit_code
from attnbench.cli.installation import machine as machine_facts
from attnbench.cli.installation import plugin_rows, show_machine, show_plugins
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
    plugins: Annotated[
        bool, typer.Option("--plugins", help="List the plugins instead, by their metadata.")
    ] = False,
    load: Annotated[
        bool, typer.Option("--load", help="With --plugins, import each and show what it brings.")
    ] = False,
    machine: Annotated[
        bool, typer.Option("--machine", help="Show versions and devices, and what is wrong.")
    ] = False,
    as_json: option.AsJson = False,
    strict: option.Strict = False,
) -> int:
    """List the subjects: scoring functions, kernels, mechanisms and layers.

    The column auto shows what attend(kernel="auto") runs for the case: the kernel with the highest
    priority that supports it, or the plain path. With addresses, all details of each are shown.
    """
    Case.from_id(case)
    _check_usage(targets, invariants=invariants, plugins=plugins, load=load, machine=machine)
    if plugins:
        rows = plugin_rows(load=load)
        print_json(rows) if as_json else show_plugins(rows)
        return exit_code((), rows)
    if machine:
        facts = machine_facts()
        print_json(facts) if as_json else show_machine(facts)
        return OK if facts["ok"] else VIOLATED
    return _list(targets, case, invariants=invariants, as_json=as_json, strict=strict)


def _check_usage(targets: list[str] | None, *, load: bool, **lists: bool) -> None:
    """Refuse two lists at once, and addresses with one that is of everything."""
    chosen = [f"--{name}" for name, is_chosen in lists.items() if is_chosen]
    if load and chosen != ["--plugins"]:
        raise UsageError("--load imports the plugins of --plugins; add that option.")
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)} are separate lists; ask for one at a time.")
    if chosen and targets:
        raise UsageError(
            f"{chosen[0]} lists everything that is installed, but {targets[0]} is named, too. "
            f"'attnbench check {targets[0]} --verbose' shows which invariants apply to it."
        )


def _list(
    targets: list[str] | None, case: str, *, invariants: bool, as_json: bool, strict: bool
) -> int:
    """List subjects or invariants."""
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
