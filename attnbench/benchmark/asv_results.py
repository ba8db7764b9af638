"""asv's list of the benchmarks of the present run, and the recorded load of the machine."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

LOADS = "asv-load.jsonl"


class ExpectedBenchmarks:
    """The benchmarks of the present run, which asv lists before it starts.

    Args:
        file: path of the module with the benchmarks.
        module: its name; asv's names are relative to the folder ``benchmarks``.
    """

    def __init__(self, file: str | None, module: str) -> None:
        self._file = file
        self._prefix = module.partition(".")[2] + "."

    @functools.cached_property
    def versions(self) -> dict[str, str]:
        """The version of each benchmark ``class.method``."""
        return {
            name.removeprefix(self._prefix): str(row.get("version"))
            for name, row in _benchmark_list(self._file).items()
            if name.startswith(self._prefix) and isinstance(row, dict)
        }

    def write(self, name: str, case: str, device: str, told: Mapping[str, Any]) -> None:
        """Record what a process tells, such as the load of the machine; only in a run of asv."""
        file = self._loads()
        line = {
            "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
            **self._place(name, case, device),
            "pythonhashseed": os.environ.get("PYTHONHASHSEED", ""),
            **told,
        }
        if file is not None:
            with contextlib.suppress(OSError), file.open("a") as lines:
                lines.write(json.dumps(line) + "\n")

    def refuse(self, name: str, case: str, device: str, reason: str) -> None:
        """Record why a process gave no number, so that no later one of this run gives one."""
        self.write(name, case, device, {"run": _run(), "refused": reason})

    def refused(self, name: str, case: str, device: str) -> str | None:
        """Why an earlier process of this run gave no number, if one did.

        asv would take the numbers of all processes after it.
        """
        file = self._loads()
        if file is None or not file.is_file():
            return None
        place = {**self._place(name, case, device), "run": _run()}
        for line in file.read_text("utf-8").splitlines():
            with contextlib.suppress(ValueError):  # a line whose process was ended
                one = json.loads(line) if '"refused": ' in line else {}
                if place.items() <= one.items():
                    return str(one["refused"])
        return None

    def _loads(self) -> Path | None:
        folder = _results(self._file)
        return folder.parent / LOADS if folder is not None and folder.parent.is_dir() else None

    def _place(self, name: str, case: str, device: str) -> dict[str, str]:
        commit = os.environ.get("ASV_COMMIT", "")
        found = {"commit": commit, "benchmark": self._prefix + name}
        return {**found, "case": case, "device": device}


def _run() -> str:
    """This run of asv: the process that starts all others, and when it began."""
    parent = psutil.Process().parent()
    with contextlib.suppress(psutil.Error):  # what ends, or belongs to another user, tells nothing
        while parent is not None and "run_server" in parent.cmdline():  # asv has one for each round
            parent = parent.parent()
    return "" if parent is None else f"{parent.pid} {parent.create_time()}"


def _results(file: str | None) -> Path | None:
    """The folder of asv's results, from its configuration."""
    folders = [Path(os.environ["ASV_CONF_DIR"])] if "ASV_CONF_DIR" in os.environ else []
    folders += Path(file).resolve().parents if file else []
    for folder in folders:
        conf = next(
            (p for n in ("asv.conf.json", "asv.conf.jsonc") if (p := folder / n).is_file()), None
        )
        if conf is not None:
            # the file may have comments, which the standard library does not read
            pattern = r'^\s*"results_dir"\s*:\s*"([^"]+)"'
            match = re.search(pattern, conf.read_text("utf-8"), re.MULTILINE)
            return folder / (match[1] if match else "results")
    return None


def _benchmark_list(file: str | None) -> Mapping[str, Any]:
    """The content of asv's ``benchmarks.json``; empty if there is none."""
    folder = _results(file)
    try:
        content = json.loads((folder / "benchmarks.json").read_text("utf-8")) if folder else {}
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
