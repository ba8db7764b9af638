"""The formats of ``attnbench check --format``: read from the options, rendered, and written.

One of a plugin is rendered in a child process with a time limit, so that it cannot end the command.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attnbench.cli.plugin_loading import ask
from attnbench.cli.printing.output_files import check_writable, write_file
from attnbench.cli.printing.tables import print_json, print_line
from attnbench.errors import PluginError, UsageError, nearest
from attnbench.processes.pool import Task, call
from attnbench.report.formats import CORE
from attnbench.report.formats.findings import Findings

_TEXT = "text"
_SHARED = (_TEXT, "github")
"""Formats that can stand on standard output together: annotations are lines among the text."""

_RENDERED = "attnbench.checking.child_tasks:rendered"
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Formats:
    """The formats and files of a report.

    Args:
        printed: name of the format on standard output.
        files: names of formats, and their files.
        located: whether a format asks for places of failures.
    """

    printed: str
    files: tuple[tuple[str, Path], ...]
    located: bool

    @property
    def has_text(self) -> bool:
        """Whether the outcomes are printed as text while they come."""
        return self.printed in _SHARED

    def write(self, findings: Findings) -> list[str]:
        """Write all formats but the text, which has been printed.

        Returns:
            The statuses, for the exit code, of formats of plugins that failed; each was named.

        Raises:
            UsageError: a file cannot be written.
        """
        failed = []
        for name, path in [*self.files, (self.printed, None)]:
            try:
                text = _rendered(name, findings)
            except PluginError as error:
                reason = str(error).strip().splitlines()[-1]  # the last of a traceback
                print(f"attnbench: --format {name}: {reason}", file=sys.stderr)
                failed.append("crashed")
                continue
            if path is not None:
                write_file(path, text.encode(), f"--format {name}")
            elif name == "json":
                print_json(json.loads(text))
            elif name != _TEXT:
                print_line(text)
        return failed


def _rendered(name: str, findings: Findings) -> str:
    if name == _TEXT:
        return ""
    if name in CORE:
        return CORE[name].render(findings)
    arguments = {"name": name, "findings": findings}
    text: str = call(Task(f"format {name}", _RENDERED, arguments, timeout_s=_TIMEOUT_S))
    return text


def formats_of(values: Sequence[str], *, as_json: bool = False) -> Formats:
    """Read the values of ``--format``; plugins are asked for theirs if one is not of the core.

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
        if in_file:
            check_writable(Path(path), f"--format {name}")
            files.append((name, Path(path)))
        else:
            printed.append(name)
    located = {name: format_.located for name, format_ in CORE.items()}
    named = [*printed, *(name for name, _ in files)]
    if not {_TEXT, *located} >= {*named}:
        located |= {row["name"]: row["located"] for row in ask("format_rows")}
    _check_names(printed, [name for name, _ in files], located)
    outputs = list(dict.fromkeys(printed))
    if len(outputs) > 1 and not {*outputs} <= {*_SHARED}:
        raise UsageError(
            f"--format: {' and '.join(outputs)} cannot both be printed; write one to a file, as "
            f"--format {outputs[1]}=FILE."
        )
    chosen = "github" if "github" in outputs else (outputs or [_TEXT])[0]
    return Formats(chosen, tuple(files), any(located.get(name) for name in named))


def _check_names(
    printed: Sequence[str], in_files: Sequence[str], known: Mapping[str, bool]
) -> None:
    for names, choices, where in (
        (printed, [_TEXT, *known], ""),
        (in_files, [name for name in known if name not in _SHARED], " for a file"),
    ):
        for name in names:
            if name not in choices:
                hint = nearest(name, choices)
                raise UsageError(f"--format: no format{where} is called {name!r}. {hint}")
