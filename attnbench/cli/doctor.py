"""``attnbench doctor``: what is installed here, and what is wrong with it."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.cli.exit_codes import OK, VIOLATED
from attnbench.cli.options import AsJson
from attnbench.cli.plugin_loading import load_plugins
from attnbench.cli.printing.tables import print_json, print_line
from attnbench.errors import AttnbenchError, UsageError, check_name
from attnbench.processes.pool import Task, call, cores
from attnbench.registry.versions import installed_version, version_problems
from attnbench.specs import DTYPES

_FUNCTION = "attnbench.benchmark.machine.sdpa_backends:backend_rows"
_TIMEOUT_S = 120.0
_REASON_WIDTH = 51
"""Characters of a reason, so that a line fits in 80 columns."""


def command(
    size: Annotated[
        tuple[int, int, int, int], typer.Option("--size", help="B H L E of the calls to try.")
    ] = (1, 8, 256, 64),
    dtype: Annotated[
        list[str] | None,
        typer.Option("--dtype", help="A dtype to try; may be repeated.", show_default="float32"),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show versions, devices and compilers, the backends of torch's attention, and what is wrong.

    Each backend is called with --size; its error is a multiple of what rounding explains, and its
    time the least of seven calls in turn. Exits with 1 if something is wrong.
    """
    problems = [*version_problems(), *_folder_problems()]
    backends: list[dict[str, Any]] = []
    for name in dtype or ():
        check_name("dtype", name, DTYPES, UsageError)
    if installed_version("torch"):
        arguments = {"sizes": size, "dtypes": dtype or ["float32"]}
        try:
            backends = call(Task("torch's attention", _FUNCTION, arguments, timeout_s=_TIMEOUT_S))
            problems += [
                f"plugin {row['plugin']!r} fails to load: {row['message']}"
                for row in load_plugins(warn=False)
                if row["status"] == "failed"
            ]
        except AttnbenchError as error:
            problems.append(f"torch does not work: {error}")
    problems += [
        f"torch's backend {row['backend']} is wrong on {row['device']} in {row['dtype']}: its "
        f"error is {row['error']:.3g} times what rounding explains."
        for row in backends
        if row["agrees"] is False
    ]
    facts = {
        "attnbench": installed_version("attnbench"),
        "kernels": installed_version("attnbench-kernels") or "not installed",
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "torch": installed_version("torch"),
        "devices": ", ".join(dict.fromkeys(row["device"] for row in backends)),
        "cores": cores(),
        "compiler": next(filter(None, map(shutil.which, ("c++", "g++", "clang++", "cl"))), None),
    }
    if as_json:
        print_json({"about": facts, "backends": backends, "wrong": problems, "ok": not problems})
    else:
        _show(facts, backends, problems)
    return VIOLATED if problems else OK


def _show(facts: dict[str, Any], backends: list[dict[str, Any]], problems: list[str]) -> None:
    for name, value in facts.items():
        absence = (
            "none: compiling with torch.compile is not possible" if name == "compiler" else "none"
        )
        print_line(f"{name:10} {value or absence}")
    if backends:
        print_line("scaled_dot_product_attention, the fastest backend first:")
    for row in sorted(backends, key=lambda row: row["time_s"] or float("inf")):
        text = textwrap.shorten(row["reason"], _REASON_WIDTH, placeholder=" ...")
        if row["works"]:
            text = f"{row['time_s'] * 1e3:8.3g} ms, error {row['error']:.2g} times what is allowed"
        print_line(f"  {row['device']:4} {row['dtype']:8} {row['backend']:10} {text}")
    for line in problems:
        print_line(f"wrong: {line}", "failed")
    if not problems:
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
