"""The file of an unfinished run: a line of JSON for each measurement of a row without a record."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from pathlib import Path

from attnbench.benchmark.measuring.row_measurements import RowMeasurement
from attnbench.benchmark.measuring.session import StoredMeasurement
from attnbench.benchmark.records.store import writing

_SUFFIX = ".partial"


def exists(path: Path) -> bool:
    """Whether the run with this file of records has a file of measurements."""
    return path.with_suffix(_SUFFIX).exists()


def runs(folder: Path) -> list[str]:
    """The ids of all runs in a folder, finished or not, the newest first."""
    files = (*folder.glob("*.jsonl"), *folder.glob(f"*{_SUFFIX}"))
    return [path.stem for path in sorted(files, key=lambda path: -path.stat().st_mtime)]


def append(path: Path, item: StoredMeasurement) -> None:
    """Append a measurement.

    Raises:
        RecordError: the file cannot be written.
    """
    with writing(path), path.with_suffix(_SUFFIX).open("a", encoding="utf-8") as file:
        file.write(json.dumps(asdict(item)) + "\n")


def read(path: Path) -> list[StoredMeasurement]:
    """Read the measurements of an interrupted run; an incomplete line is ignored."""
    if not exists(path):
        return []
    measurements = []
    for line in path.with_suffix(_SUFFIX).read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            data = json.loads(line)
            data["measurement"] = RowMeasurement.of_data(data["measurement"])
            measurements.append(StoredMeasurement(**data))
    return measurements


def remove(path: Path) -> None:
    """Remove the file of measurements of a complete run."""
    path.with_suffix(_SUFFIX).unlink(missing_ok=True)
