"""The file of an unfinished run: one line of JSON for each take of a row without a record."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from attnbench.benchmark.measuring.session import Taken
from attnbench.benchmark.measuring.takes import Take
from attnbench.benchmark.records.store import writing

_SUFFIX = ".partial"


def exists(path: Path) -> bool:
    """Whether the run with this file of records has a file of takes."""
    return path.with_suffix(_SUFFIX).exists()


def files(folder: Path) -> list[Path]:
    """The files of takes of all runs in a folder."""
    return list(folder.glob(f"*{_SUFFIX}"))


def append(path: Path, taken: Taken) -> None:
    """Append a take.

    Raises:
        RecordError: the file cannot be written.
    """
    line = {**vars(taken), "take": taken.take.as_data()}
    with writing(path), path.with_suffix(_SUFFIX).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read(path: Path) -> list[Taken]:
    """Read the takes of an interrupted run; an incomplete line is ignored."""
    if not exists(path):
        return []
    found = []
    for line in path.with_suffix(_SUFFIX).read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            data = json.loads(line)
            found.append(Taken(**{**data, "take": Take.of_data(data["take"])}))
    return found


def remove(path: Path) -> None:
    """Remove the file of takes of a complete run."""
    path.with_suffix(_SUFFIX).unlink(missing_ok=True)
