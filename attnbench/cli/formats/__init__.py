"""The formats of ``attnbench check --format``: one module per format, with a function ``render``.

``render(findings)`` gives the text of a report; a format other than ``text`` and ``github`` is a
document of its own, on standard output or in a file.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnbench.cli.formats.places import Findings
from attnbench.cli.printing.output_files import check_writable, write_file
from attnbench.cli.printing.tables import print_json, print_line
from attnbench.errors import UsageError, nearest

FORMATS = ("text", "json", "junit", "sarif", "github")
_POINTING = {"sarif", "github"}
"""Formats that point at lines of code."""

_SHARED = ("text", "github")
"""Formats that can stand on standard output together: annotations are lines among the text."""


@dataclass(frozen=True)
class Formats:
    """The formats and files of a report."""

    printed: str
    files: tuple[tuple[str, Path], ...]

    @property
    def has_text(self) -> bool:
        """Whether the outcomes are printed as text while they come."""
        return self.printed in _SHARED

    @property
    def has_places(self) -> bool:
        """Whether a format points at lines of code."""
        names = {self.printed, *(name for name, _ in self.files)}
        return bool(names & _POINTING)

    def write(self, findings: Findings) -> None:
        """Write all formats but the text, which has been printed.

        Raises:
            UsageError: a file cannot be written.
        """
        for name, path in self.files:
            write_file(path, _rendered(name, findings).encode(), f"--format {name}")
        if self.printed == "json":
            print_json(json.loads(findings.report.to_json()))
        elif self.printed != "text":
            print_line(_rendered(self.printed, findings))


def _rendered(name: str, findings: Findings) -> str:
    if name == "json":
        return findings.report.to_json()
    render = importlib.import_module(f"attnbench.cli.formats.{name}").render
    return str(render(findings))


def formats_of(values: Sequence[str], *, as_json: bool = False) -> Formats:
    """Read the values of ``--format``.

    Args:
        values: ``FORMAT`` for standard output, or ``FORMAT=FILE``.
        as_json: whether ``--json`` was given.

    Raises:
        UsageError: a format is unknown, two are printed, or a file cannot be written.
    """
    printed = ["json"] if as_json else []
    files = []
    for text in values:
        name, in_file, path = text.partition("=")
        if name not in FORMATS or (in_file and name in _SHARED):
            names = [format_ for format_ in FORMATS if not (in_file and format_ in _SHARED)]
            where = " for a file" if in_file else ""
            hint = nearest(name, names)
            raise UsageError(f"--format: no format{where} is called {name!r}. {hint}")
        if in_file:
            check_writable(Path(path), f"--format {name}")
            files.append((name, Path(path)))
        else:
            printed.append(name)
    outputs = list(dict.fromkeys(printed))
    if len(outputs) > 1 and not set(outputs) <= {*_SHARED}:
        raise UsageError(
            f"--format: {' and '.join(outputs)} cannot both be printed; write one to a file, as "
            f"--format {outputs[1]}=FILE."
        )
    return Formats("github" if "github" in outputs else (outputs or ["text"])[0], tuple(files))
