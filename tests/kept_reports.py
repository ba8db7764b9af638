"""Whole reports kept as text: what a user sees, held by the files in ``tests/reports``."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["assert_report"]

_FOLDER = Path(__file__).with_name("reports")
_WRITE = "ATTNBENCH_WRITE_REPORTS"


def assert_report(name: str, text: str) -> None:
    """Compare a text with the file of that name, or write the file if the variable asks for it."""
    path = _FOLDER / name
    lines = "\n".join(line.rstrip() for line in text.strip().splitlines()) + "\n"
    if os.environ.get(_WRITE):
        path.parent.mkdir(exist_ok=True)
        path.write_text(lines, "utf-8")
    assert lines == path.read_text("utf-8"), f"{_WRITE}=1 writes {path.name} anew"
