"""Loading of plugins in a child process that they may crash, and versions that do not fit."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

from attnbench.cli.options import FAILED_PLUGIN
from attnbench.errors import PluginError, UsageError
from attnbench.processes.pool import Task, call, warm_up
from attnbench.registry import discovery
from attnbench.registry.address import Address
from attnbench.registry.discovery import installed_version, unmet

_ROWS = "attnbench.report.subject_rows"
_PLUGINS = "attnbench.registry.catalog:plugins_and_shadows"
_TRY_OPTIONS = "attnbench.checking.plan:try_options_of"
PLAN = "attnbench.checking.plan:plan"
"""The function that plans a check, for :func:`ask`."""

_LOAD_S = 120.0
_MAKE_S = 20.0


class FailedPluginError(PluginError):
    """A plugin failed to load under ``--strict-plugins``, or its command failed."""

    exit_code = FAILED_PLUGIN


def ask(function: str, **arguments: Any) -> Any:
    """Call a function in a child process.

    Args:
        function: name of one of :mod:`attnbench.report.subject_rows`, or ``module:name``.
        arguments: its arguments.

    Raises:
        AttnbenchError: the function raised it.
    """
    if importlib.util.find_spec("torch") is None:
        raise UsageError("this command needs torch, which is not installed: pip install torch.")
    _refuse_an_old_torch()
    place = function if ":" in function else f"{_ROWS}:{function}"
    doing = "finding out how the target is called, which --example says" * (function == PLAN)
    return call(Task(doing or function, place, arguments, timeout_s=_LOAD_S))


def _refuse_an_old_torch() -> None:
    if problem := too_old("torch"):
        raise UsageError(problem)


def try_options(targets: Sequence[Address]) -> None:
    """Build the subjects whose addresses have options, each in a child, to find wrong options.

    If a child hangs, dies or raises anything else, the command itself reports it for that subject.

    Raises:
        AttnbenchError: an option, or a name given as its value, is unknown.
    """
    for target in targets:
        if target.options:
            with contextlib.suppress(PluginError):
                call(Task(str(target), _TRY_OPTIONS, {"target": target}, timeout_s=_MAKE_S))


def warm_up_children(*modules: str) -> None:
    """Start the server of child processes, which imports modules and built-in plugins once.

    It imports no plugin of others, which might crash it.
    """
    built_in = [
        p for p in discovery.discover() if p.distribution == "attnbench" and p.status == "found"
    ]
    warm_up(*(plugin.value.partition(":")[0] for plugin in built_in), *modules)


def load_plugins(
    *, strict: bool = False, warn: bool = True, preload: Sequence[str] = (), fork: bool = False
) -> list[dict[str, Any]]:
    """Load every plugin in a child, and warn on standard error about those that failed.

    A plugin that kills the process that imports it is found by loading each alone; it is blocked
    for the rest of this command.

    Args:
        strict: raise if one failed.
        warn: whether to warn.
        preload: modules that the children of this command need.
        fork: fork the child from this process, which has imported torch.

    Raises:
        FailedPluginError: a plugin failed and ``strict`` is set.
        UsageError: torch is older than any that attnbench runs with.
    """
    _refuse_an_old_torch()
    if not fork:
        warm_up_children(*preload)
    task = Task("plugins", _PLUGINS, timeout_s=_LOAD_S, fork=fork)
    try:
        plugins, shadows = call(task)
    except PluginError:
        failures = _block_deadly()
        if not failures:
            raise
        plugins, shadows = call(task)
        plugins = [failures.get(row["plugin"], row) for row in plugins]
    failed = [row for row in plugins if row["status"] == "failed"]
    for line in _warnings(failed, shadows) if warn else ():
        print(f"warning: {line}", file=sys.stderr)
    if strict and failed:
        count = "a plugin" if len(failed) == 1 else f"{len(failed)} plugins"
        raise FailedPluginError(f"{count} failed to load, and --strict-plugins is set.")
    return list(plugins)


def _block_deadly() -> dict[str, dict[str, Any]]:
    """Find the plugins that kill the process that imports them, and block them."""
    variable = discovery.DISABLED_VARIABLE
    disabled = os.environ.get(variable, "")
    found = {plugin.name: plugin for plugin in discovery.discover() if plugin.status == "found"}
    rows = {}
    for name, plugin in found.items():
        os.environ[variable] = ",".join([disabled, *(other for other in found if other != name)])
        try:
            call(Task(f"plugin {name}", _PLUGINS, timeout_s=20.0))
        except PluginError as error:
            texts = dict.fromkeys(("message", "traceback"), str(error))
            rows[name] = {**plugin.as_row(), "status": "failed", "brings": [], **texts}
    os.environ[variable] = ",".join([disabled, *rows])
    return rows


def _warnings(failures: list[dict[str, Any]], shadows: list[str]) -> list[str]:
    """What to warn of: versions, plugins that failed to load, and names taken twice."""
    lines = version_problems(["attnbench"], missing=False)
    for row in failures:
        where = f"{row['plugin']!r} ({row['distribution']} {row['version']})"
        lines.append(f"plugin {where} failed to load: {row['message']}")
    if failures:
        lines[-1] += "\n  'attnbench list --plugins --load' shows the tracebacks."
    return [*lines, *shadows]


def version_problems(owners: Sequence[str] | None = None, *, missing: bool = True) -> list[str]:
    """Requirements that have another version than the installed one, or are missing, in words.

    Args:
        owners: distributions whose requirements are read; by default attnbench and all plugins.
        missing: whether to name requirements that are not installed.
    """
    problems = []
    plugins = {plugin.distribution: None for plugin in discovery.discover()}
    for owner in dict.fromkeys(("attnbench", *plugins)) if owners is None else owners:
        for requirement, version in unmet(owner):
            if version is not None:
                problems.append(_other_version(owner, requirement, version))
            elif missing:
                problems.append(f"{owner} needs {requirement}, which is not installed.")
    return problems


def too_old(name: str) -> str | None:
    """That the installed version of what attnbench needs is below the lowest, in words."""
    for requirement, version in unmet("attnbench"):
        least = [part for part in requirement.specifier if part.operator == ">="]
        met = version is None or all(part.contains(version, prereleases=True) for part in least)
        if requirement.name == name and not met:
            return _other_version("attnbench", requirement, str(version))
    return None


def _other_version(owner: str, requirement: object, version: str) -> str:
    return (
        f"{owner} {installed_version(owner)} needs {requirement}, but {version} is "
        f"installed: pip install '{requirement}'"
    )
