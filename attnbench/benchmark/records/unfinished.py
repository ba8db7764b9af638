"""The file of an unfinished run: the takes of rows that have no record yet, one JSON line each."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from attnbench.benchmark.measuring.session import Taken
from attnbench.benchmark.measuring.takes import Take
from attnbench.benchmark.records.store import writing

__all__ = ["append", "exists", "files", "read", "remove"]

_SUFFIX = ".partial"


def exists(path: Path) -> bool:
    """Whether the run with this file of records has such a file."""
    return path.with_suffix(_SUFFIX).exists()


def files(folder: Path) -> list[Path]:
    """Those of all runs in a folder."""
    return list(folder.glob(f"*{_SUFFIX}"))


def append(path: Path, taken: Taken) -> None:
    """Add a take.

    Raises:
        RecordError: it cannot be written.
    """
    line = {**vars(taken), "take": taken.take.as_data()}
    with writing(path), path.with_suffix(_SUFFIX).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> list[Taken]:
    """The takes of a run that was ended; a line that was cut short is left out."""
    if not exists(path):
        return []
    found = []
    for line in path.with_suffix(_SUFFIX).read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            data = json.loads(line)
            found.append(Taken(**{**data, "take": Take.of_data(data["take"])}))
    return found


def remove(path: Path) -> None:
    """Remove the file of a run that is complete."""
    path.with_suffix(_SUFFIX).unlink(missing_ok=True)
