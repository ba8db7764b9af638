"""``attnbench check``: check subjects against every invariant that applies to them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.checking import parallel
from attnbench.checking.check_report import CheckReport
from attnbench.cli import options as option
from attnbench.cli.check_run import Check, statuses_of
from attnbench.cli.configuration import without_known
from attnbench.cli.outcome_lines import Screen, next_step
from attnbench.cli.plugin_loading import ask, load_plugins, try_options
from attnbench.errors import PluginError, UsageError, nearest
from attnbench.processes.pool import MEMORY_GIB, Task, call
from attnbench.report.findings import Findings, findings_of
from attnbench.report.printing import check_writable, print_json, print_line, write_file

_TEXT = "text"
_OWN = {_TEXT: False, "json": False}
"""What needs no plugin, and as little places of failures."""

_SHARED = (_TEXT, "github")
"""Formats that can stand on standard output together: annotations are lines among the text."""

_RENDERED = "attnbench.report.findings:rendered"
_TIMEOUT_S = 30.0
_QUESTIONS = 3
"""The most lines on what was not looked at in the only target, where that is a user's own."""


def command(
    targets: option.Targets = None,
    style: option.Style = None,
    call: option.Call = None,
    convention: option.Convention = None,
    make: Annotated[
        str | None,
        typer.Option(
            "--make",
            metavar="CALL",
            help='How a class is made, for E features: "Attention(Config(n_embd=E, n_head=2))". By '
            "default its arguments are found out by their names.",
        ),
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(
            "--example",
            metavar="FILE:NAME",
            help="Arguments of one call of the target, a module or a function: (args, kwargs), a "
            "tuple, a dict or a tensor, or a function that gives them. Nothing is made then.",
        ),
    ] = None,
    jobs: option.Jobs = 0,
    profile: option.Profile = "quick",
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Seed of the drawn cases; by default the same every time."),
    ] = None,
    cluster: option.Cluster = None,
    dtype: option.Dtypes = None,
    device: option.Device = "cpu",
    invariant: option.Invariants = None,
    case: Annotated[
        str | None,
        typer.Option("--case", metavar="ID", help="Run this case alone, such as a printed one."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0.1,
            help="Most seconds for an invariant on a subject; by default 120, 240 or 900, by "
            "profile.",
        ),
    ] = None,
    memory: Annotated[
        float,
        typer.Option("--memory", min=0.1, help="Most GiB of memory for the process of a subject."),
    ] = MEMORY_GIB,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="FORMAT[=FILE]",
            help="text, json, junit, sarif, github, or a plugin's, printed or in a file; may be "
            "repeated.",
        ),
    ] = None,
    exempt: Annotated[
        list[str] | None,
        typer.Option(
            "--exempt",
            metavar="NAME=REASON",
            help="An invariant, or 'SUBJECT: INVARIANT', that is not run; may be repeated.",
        ),
    ] = None,
    update_exempt: Annotated[
        bool,
        typer.Option(
            "--update-exempt",
            help="Write today's failures into the table tool.attnbench.exempt of pyproject.toml, "
            "so that only new ones fail, and remove from it what holds again.",
        ),
    ] = False,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first outcome that is not good.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show every outcome, with the cases it saw.")
    ] = False,
    as_json: option.AsJson = False,
    strict: option.Strict = False,
) -> int:
    """Check subjects against every invariant that applies to them.

    Each subject runs in its own process. If that hangs or dies, it is recorded as the outcome, and
    the other subjects go on. A subject that passes is one line, with how many properties hold and
    how many do not apply; -v shows each, with the cases it saw.
    """
    preload = parallel.preload(len(targets) if targets else None, invariant)
    plugins = load_plugins(strict=strict, preload=preload)
    outputs = outputs_of([*(["json"] if as_json else []), *(formats or ())])
    addresses = option.parse_targets(targets, style, convention, call, make, example)
    try_options(addresses or ())
    exemptions = without_known(exempt or ()) if update_exempt else exempt or ()
    what: dict[str, Any] = {"profile": profile, "device": device, "dtypes": dtype, "case": case}
    check = Check(addresses, exemptions, invariants=invariant, seed=seed, **what)
    limits = {"jobs": jobs, "timeout_s": timeout, "memory_gib": memory, "cluster": cluster}
    limits["fail_fast"] = fail_fast
    asked = _QUESTIONS if option.is_one_of_a_file(addresses) else 0
    expected, statements = check.expected, check.statements
    screen = None
    if all(name in _SHARED for name, path in outputs if path is None):
        screen = Screen(expected, statements, verbose=verbose, questions=asked)
    named = option.as_typed(targets, addresses)
    report = _reported(check, screen, limits, named, update_exempt=update_exempt)
    findings = findings_of(report, check.statements, check.works, located=any(outputs.values()))
    statuses = [*statuses_of(report), *_written(outputs, findings)]
    return option.INTERRUPTED if check.interrupted else option.exit_code(statuses, plugins)


def _reported(
    check: Check,
    screen: Screen | None,
    limits: dict[str, Any],
    targets: Sequence[str],
    *,
    update_exempt: bool,
) -> CheckReport:
    """Run a check, and show it on a screen if there is one."""
    for line in check.plan["about"] if screen else ():
        print_line(line)
    check.run(screen.add if screen else lambda outcome: None, **limits)
    if update_exempt:
        check.exempt_failures()
    report = check.report()
    if screen:
        screen.end(report, check.seconds, next_step(report, targets))
    return report


Outputs = Mapping[tuple[str, Path | None], bool]
"""The formats that are asked for and their files, ``None`` for standard output, and whether each
asks for places of failures."""


def _written(outputs: Outputs, findings: Findings) -> list[str]:
    """Write all formats but the text, which has been printed.

    Returns:
        The statuses, for the exit code, of formats that failed; each was named.
    """
    failed = []
    for name, path in outputs:
        try:
            text = _rendered(name, findings)
        except PluginError as error:
            reason = str(error).strip().splitlines()[-1]  # the last of a traceback
            print(f"attnbench: --format {name}: {reason}", file=sys.stderr)
            failed.append("crashed")
            continue
        if path is not None:
            write_file(path, text.encode(), f"--format {name}")
        elif name == "json":
            print_json(json.loads(text))
        elif name != _TEXT:
            print_line(text)
    return failed


def _rendered(name: str, findings: Findings) -> str:
    """The report in a format; those of plugins are rendered in a child with a time limit."""
    if name in _OWN:
        return "" if name == _TEXT else findings.report.to_json()
    arguments = {"name": name, "findings": findings}
    text: str = call(Task(f"format {name}", _RENDERED, arguments, timeout_s=_TIMEOUT_S))
    return text


def outputs_of(values: Sequence[str]) -> Outputs:
    """Read the values of ``--format``; plugins are asked for theirs if one is not of the core.

    Args:
        values: ``FORMAT`` for standard output, or ``FORMAT=FILE``.

    Raises:
        UsageError: a format is unknown, two are printed, or a file cannot be written.
    """
    parts = [text.partition("=") for text in values]
    asked = [(name, Path(place) if sign else None) for name, sign, place in parts]
    is_known = all(name in _OWN for name, _ in asked)
    known = _OWN if is_known else {**_OWN, **ask("attnbench.report.findings:format_rows")}
    for name, path in asked:
        choices = [one for one in known if path is None or one not in _SHARED]
        if name not in choices:
            where = "" if path is None else " for a file"
            hint = nearest(name, choices)
            raise UsageError(f"--format: no format{where} is called {name!r}. {hint}")
        if path is not None:
            check_writable(path, f"--format {name}")
    printed = [name for name, path in asked if path is None]
    if len(printed) > 1 and not {*printed} <= {*_SHARED}:
        raise UsageError(
            f"--format: {' and '.join(printed)} cannot both be printed; write one to a file, as "
            f"--format {printed[1]}=FILE."
        )
    return {(name, path): known[name] for name, path in asked}
