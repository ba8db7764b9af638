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

    def write_load(self, name: str, case: str, device: str, load: Mapping[str, float]) -> None:
        """Record the load of the machine; only within a run of asv."""
        folder = _results(self._file)
        if folder is None or not folder.parent.is_dir():
            return
        line = {
            "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "commit": os.environ.get("ASV_COMMIT", ""),
            "benchmark": self._prefix + name,
            "case": case,
            "device": device,
            "pythonhashseed": os.environ.get("PYTHONHASHSEED", ""),
            **load,
        }
        with contextlib.suppress(OSError), (folder.parent / LOADS).open("a") as file:
            file.write(json.dumps(line) + "\n")


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
