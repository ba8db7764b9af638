"""``attnbench list``: the installed subjects, or invariants, plugins, and the machine."""

from __future__ import annotations

import platform
import shutil
from typing import Annotated, Any

import typer

from attnbench.cases.case import Case
from attnbench.cli import options as option
from attnbench.cli.plugin_loading import ask, load_plugins, too_old, version_problems
from attnbench.errors import AttnbenchError, UsageError
from attnbench.processes.pool import cores
from attnbench.registry.discovery import discover, installed_version
from attnbench.report.printing import print_json, print_line, print_table
from attnbench.specs import DTYPES

_CASE = Case((8, 8), 256, 256, 64, 64, 64)
_DEVICES = "attnbench.subject.devices:available_devices"
_FEW = 3
"""Most names that the table shows of what a plugin brings."""


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
        rows = load_plugins(warn=False) if load else [plugin.as_row() for plugin in discover()]
        print_json(rows) if as_json else _show_plugins(rows)
        return option.exit_code((), rows)
    if machine:
        facts = machine_facts()
        print_json(facts) if as_json else _show_machine(facts)
        return option.OK if facts["ok"] else option.VIOLATED
    loaded = load_plugins(strict=strict)
    if invariants:
        rows = ask("invariant_rows")
    else:
        rows = ask("subject_rows", targets=option.parse_targets(targets), case_id=case)
        rows = [{**row, "target": str(row["target"])} for row in rows]
    if as_json:
        print_json(rows)
    elif targets:
        for row in rows:
            _show(row, case)
    else:
        print_table(rows if invariants else [_cells(row) for row in rows])
    return option.exit_code((), loaded)


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


def _cells(row: dict[str, Any]) -> dict[str, str]:
    dtypes = "all" if set(row["dtypes"]) == set(DTYPES) else ", ".join(row["dtypes"])
    auto = next((k["kernel"] for k in row["kernels"] if k["reason"] is None), "plain")
    return {
        **{name: row[name] for name in ("subject", "kind", "formula")},
        "sizes": "Eq = Ek" if row["equal_sizes"] else "",
        "dtypes": dtypes,
        "laws": ", ".join(row["laws"]),
        "auto": auto if row["kind"] == "scoring" else "",
    }


def _show(row: dict[str, Any], case: str) -> None:
    """Print all details of a subject."""
    facts = {name: row[name] for name in ("formula", "source", "dtypes", "laws")}
    facts["sizes"] = "query_size == key_size" if row["equal_sizes"] else "may differ"
    facts |= row["layer"] or {}
    lines = [f"{name:8}{_told(fact)}" for name, fact in facts.items()]
    lines += [f"exempt  from {name}: {reason}" for name, reason in row["exempt"].items()]
    print_line("\n  ".join([f"{row['subject']} ({row['kind']})", *lines]))
    if row["kind"] == "scoring":
        print_line(
            f"  kernels at {case}: kernel='auto' takes the first without a reason against it"
        )
        plain = {"kernel": "plain", "priority": None, "reason": None, "runs_as": ""}
        print_table([*row["kernels"], plain])


def _told(fact: Any) -> str:
    """A fact in words: flags, names, and what a mapping holds."""
    if isinstance(fact, dict):
        return "; ".join(f"{name} {_told(value)}" for name, value in fact.items())
    if isinstance(fact, list | tuple):
        return ", ".join(map(str, fact)) or "none"
    if isinstance(fact, bool):
        return "yes" if fact else "no"
    return "none" if fact is None else str(fact)


def _show_plugins(rows: list[dict[str, Any]]) -> None:
    """Print the plugins, and the tracebacks of those that failed."""
    table = []
    for row in rows:
        shown = {k: v for k, v in row.items() if k not in ("message", "traceback")}
        if names := row.get("brings"):
            more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
            shown["brings"] = ", ".join(names[:_FEW]) + more
        table.append(shown)
    print_table(
        table, empty="No plugin is installed, not even the built-in ones: reinstall attnbench."
    )
    for row in rows:
        if row["status"] == "failed":
            origin = f"{row['plugin']} ({row['distribution']} {row['version']})"
            print_line(f"{origin} failed to load: {row['message']}")
            print_line("  " + row["traceback"].rstrip().replace("\n", "\n  ") + "\n")


def machine_facts() -> dict[str, Any]:
    """Versions, devices and compilers (``about``), and what is ``wrong`` with them, in words."""
    problems = version_problems()
    devices: list[str] = []
    if installed_version("torch") and not too_old("torch"):
        try:
            devices = ask(_DEVICES)
            problems += [
                f"plugin {row['plugin']!r} fails to load: {row['message']}"
                for row in load_plugins(warn=False)
                if row["status"] == "failed"
            ]
        except AttnbenchError as error:
            problems.append(f"torch does not work: {error}")
    others = {p.distribution: p.version for p in discover() if p.distribution != "attnbench"}
    about = {
        "attnbench": installed_version("attnbench"),
        "plugins": ", ".join(f"{name} {version}" for name, version in others.items()) or None,
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "torch": installed_version("torch"),
        "devices": ", ".join(devices) or None,
        "cores": cores(),
        "compiler": next(filter(None, map(shutil.which, ("c++", "g++", "clang++", "cl"))), None),
    }
    return {"about": about, "wrong": problems, "ok": not problems}


def _show_machine(facts: dict[str, Any]) -> None:
    """Print a line for each fact and each problem."""
    for name, value in facts["about"].items():
        without = " (torch.compile needs one)" if name == "compiler" else ""
        print_line(f"{name:10} {value or 'none' + without}")
    for line in facts["wrong"]:
        print_line(f"wrong: {line}", "failed")
    if facts["ok"]:
        print_line("Nothing is wrong here.", "ok")
