"""What is installed here, and what is wrong with it: ``list --plugins`` and ``list --machine``."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any

from attnbench.cli.plugin_loading import load_plugins
from attnbench.cli.printing.tables import print_line, print_table
from attnbench.errors import AttnbenchError
from attnbench.processes.pool import Task, call, cores
from attnbench.registry.discovery import absent_module, discover
from attnbench.registry.versions import installed_version, version_problems

_DEVICES = "attnbench.subject.devices:available_devices"
_TIMEOUT_S = 120.0
_FEW = 3
"""Most names that the table shows of what a plugin brings."""


def plugin_rows(*, load: bool) -> list[dict[str, Any]]:
    """The installed plugins; unless they are loaded, only their metadata is read."""
    if load:
        return load_plugins(warn=False)
    rows = []
    for plugin in discover():
        module = absent_module(plugin) if plugin.status == "found" else None
        missing = {"status": f"missing: no module {module}"} if module else {}
        rows.append(plugin.as_row() | missing)
    return rows


def show_plugins(rows: list[dict[str, Any]]) -> None:
    """Print the plugins, and the tracebacks of those that failed."""
    print_table(
        [_short(row) for row in rows],
        hide=("message", "traceback"),
        empty="No plugin is installed, not even the built-in ones: reinstall attnbench.",
    )
    for row in rows:
        if row["status"] == "failed":
            origin = f"{row['plugin']} ({row['distribution']} {row['version']})"
            print_line(f"{origin} failed to load: {row['message']}")
            print_line("  " + row["traceback"].rstrip().replace("\n", "\n  ") + "\n")


def _short(row: dict[str, Any]) -> dict[str, Any]:
    names = row.get("brings")
    if names is None:
        return row
    more = f" and {len(names) - _FEW} more" if len(names) > _FEW else ""
    return {**row, "brings": ", ".join(names[:_FEW]) + more}


def machine() -> dict[str, Any]:
    """Versions, devices and compilers (``about``), and what is ``wrong`` with them, in words."""
    problems = [*version_problems(), *_folder_problems()]
    devices: list[str] = []
    if installed_version("torch"):
        try:
            devices = call(Task("devices", _DEVICES, timeout_s=_TIMEOUT_S))
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


def show_machine(facts: dict[str, Any]) -> None:
    """Print a line for each fact and each problem."""
    for name, value in facts["about"].items():
        without = " (torch.compile needs one)" if name == "compiler" else ""
        print_line(f"{name:10} {value or 'none' + without}")
    for line in facts["wrong"]:
        print_line(f"wrong: {line}", "failed")
    if facts["ok"]:
        print_line("Nothing is wrong here.", "ok")


def _folder_problems() -> list[str]:
    """Required folders that cannot be written."""
    problems = []
    home = os.environ.get("HOME") or os.path.expanduser("~")
    if not Path(home).is_dir():
        problems.append(f"there is no home folder ({home}): set HOME, or caches are lost.")
    caches = {
        "compiled code": Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())),
        "failing examples": Path(".hypothesis") if Path(".hypothesis").exists() else Path(),
    }
    for purpose, folder in caches.items():
        if not os.access(folder, os.W_OK):
            problems.append(
                f"{folder.resolve()}, for {purpose}, cannot be written: nothing is kept there."
            )
    return problems
