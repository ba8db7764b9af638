"""``attnbench doctor``: what is installed here, and what is wrong with it."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import textwrap
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.cli.exit_codes import OK, VIOLATED
from attnbench.cli.options import AsJson
from attnbench.cli.printing.tables import print_json, print_line
from attnbench.errors import AttnbenchError, UsageError, nearest
from attnbench.specs import DTYPES

_TRY = "attnbench.benchmark.machine.sdpa_backends:backend_rows"
_TRY_S = 120.0
_SHORT = 52
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
    wrong = [*_wrong_versions(), *_wrong_folders()]
    backends: list[dict[str, Any]] = []
    for name in dtype or ():
        if name not in DTYPES:
            raise UsageError(f"--dtype: no dtype is called {name!r}. {nearest(name, DTYPES)}")
    if _version("torch"):
        from attnbench.cli.plugin_loading import load_plugins
        from attnbench.processes.pool import Task, call

        given = {"sizes": size, "dtypes": dtype or ["float32"]}
        try:
            backends = call(Task("torch's attention", _TRY, given, timeout_s=_TRY_S))
            wrong += [
                f"plugin {row['plugin']!r} fails to load: {row['message']}"
                for row in load_plugins(warn=False)
                if row["status"] == "failed"
            ]
        except AttnbenchError as error:
            wrong.append(f"torch does not work: {error}")
    wrong += [
        f"torch's backend {row['backend']} is wrong on {row['device']} in {row['dtype']}: its "
        f"error is {row['error']:.3g} times what rounding explains."
        for row in backends
        if row["agrees"] is False
    ]
    about = {
        "attnbench": _version("attnbench"),
        "kernels": _version("attnbench-kernels") or "not installed",
        "Python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "torch": _version("torch"),
        "devices": ", ".join(dict.fromkeys(row["device"] for row in backends)),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "compiler": next(filter(None, map(shutil.which, ("c++", "g++", "clang++", "cl"))), None),
    }
    if as_json:
        print_json({"about": about, "backends": backends, "wrong": wrong, "ok": not wrong})
    else:
        _show(about, backends, wrong)
    return VIOLATED if wrong else OK


def _show(about: dict[str, Any], backends: list[dict[str, Any]], wrong: list[str]) -> None:
    for name, value in about.items():
        none = (
            "none: compiling with torch.compile is not possible" if name == "compiler" else "none"
        )
        print_line(f"{name:10} {value or none}")
    if backends:
        print_line("scaled_dot_product_attention, the fastest backend first:")
    for row in sorted(backends, key=lambda row: row["time_s"] or float("inf")):
        text = textwrap.shorten(row["reason"], _SHORT, placeholder=" ...")
        if row["works"]:
            text = f"{row['time_s'] * 1e3:8.3g} ms, error {row['error']:.2g} times what is allowed"
        print_line(f"  {row['device']:4} {row['dtype']:8} {row['backend']:9} {text}")
    for line in wrong:
        print_line(f"wrong: {line}", "failed")
    if not wrong:
        print_line("Nothing is wrong here.", "ok")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _wrong_versions() -> list[str]:
    """What an installed distribution requires and does not find, torch and kernels among them."""
    from packaging.requirements import Requirement

    wrong = []
    for owner in ("attnbench", "attnbench-kernels", "attnbench-ring"):
        for text in (metadata.requires(owner) or ()) if _version(owner) else ():
            required = Requirement(text)
            if required.marker is not None and not required.marker.evaluate({"extra": ""}):
                continue
            found = _version(required.name)
            if found is None:
                wrong.append(f"{owner} needs {required}, which is not installed.")
            elif not required.specifier.contains(found, prereleases=True):
                wrong.append(
                    f"{owner} {_version(owner)} needs {required}, but {found} is installed: "
                    f"pip install '{required}'"
                )
    return wrong


def _wrong_folders() -> list[str]:
    """Folders that are needed and cannot be written."""
    wrong = []
    home = os.environ.get("HOME") or os.path.expanduser("~")
    if not Path(home).is_dir():
        wrong.append(f"there is no home folder ({home}): set HOME, or caches are lost.")
    caches = {
        "compiled code": Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())),
        "failing examples": Path(".hypothesis") if Path(".hypothesis").exists() else Path(),
    }
    for what, folder in caches.items():
        if not os.access(folder, os.W_OK):
            wrong.append(
                f"{folder.resolve()}, for {what}, cannot be written: nothing is kept there."
            )
    return wrong
