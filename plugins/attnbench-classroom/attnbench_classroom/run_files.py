"""The file of a learning experiment: one line of JSON a run, appended as runs end."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnbench import UsageError

KEY = ("task", "subject", "size", "seed", "steps", "batch")
"""What makes two runs the same."""


def key_of(run: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a run is, apart from what it gave."""
    return tuple(run[name] for name in KEY)


def read(path: Path) -> list[dict[str, Any]]:
    """The runs of a file, none if it does not exist.

    A last line that a killed process left half written is left out; of runs that two commands made
    at once, one stands.

    Raises:
        UsageError: the file cannot be read, or another line is no run.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--output {path}: cannot be read: {error}.") from None
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, line in enumerate(lines[:-1], 1):
        try:
            run = json.loads(line)
            found.setdefault(key_of(run), run)
        except (ValueError, KeyError, TypeError):
            raise UsageError(
                f"--output {path}: line {number} is no run of attnbench learn; name another file, "
                "or remove the line."
            ) from None
    return list(found.values())


def append(path: Path, run: Mapping[str, Any]) -> None:
    """Append a run in one write, behind the last whole line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        if whole < size:  # a killed process left half a line
            file.truncate(whole)
        file.write(json.dumps(run).encode() + b"\n")
