"""The failures of a report, and their lines of code."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnbench.checking.check_report import CheckReport
from attnbench.checking.outcomes import Outcome
from attnbench.checking.parallel import Work
from attnbench.errors import AttnbenchError
from attnbench.processes.pool import Task, call

_ROOTS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
"""Variables that hold the folder of the repository, to which paths in annotations are relative."""
_CODE_LINE = "attnbench.checking.child_tasks:code_line_of"
_TIMEOUT_S = 60.0


@dataclass(frozen=True, order=True)
class Place:
    """A line of a file."""

    file: str
    line: int


@dataclass(frozen=True)
class Findings:
    """The report that a format renders, with the lines of code of its subjects."""

    report: CheckReport
    statements: Mapping[str, str]
    places: Mapping[str, Place] = field(default_factory=dict)

    def place_of(self, outcome: Outcome) -> Place | None:
        """The line at which the subject raised the failure, or else the line of its code."""
        raised = outcome.failure.source_line if outcome.failure else None
        if raised:
            file, _, line = raised.rpartition(":")
            if Path(file).exists():
                return place_at(file, int(line))
        return self.places.get(outcome.subject)


def findings_of(
    report: CheckReport, statements: Mapping[str, str], works: Sequence[Work], *, located: bool
) -> Findings:
    """The findings of a report.

    Args:
        report: the report.
        statements: statements of the invariants by name.
        works: the works that ran, which hold the addresses of the subjects.
        located: whether to find the subjects' code, which makes each in a child process.
    """
    places = {}
    failing = {outcome.subject for outcome in report.failures}
    for target, label in {(work.target, work.label) for work in works if located}:
        if label in failing:
            task = Task(label, _CODE_LINE, {"target": target}, _TIMEOUT_S)
            with contextlib.suppress(AttnbenchError):  # it may hang or die as in its check
                if (line := call(task)) is not None:
                    places[label] = place_at(*line)
    return Findings(report, statements, places)


def place_at(file: str, line: int) -> Place:
    """A line of a file, whose path is made relative to the repository."""
    root = next((os.environ[name] for name in _ROOTS if os.environ.get(name)), ".")
    path, folder = Path(file).resolve(), Path(root).resolve()
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    return Place(shown.as_posix(), line)
