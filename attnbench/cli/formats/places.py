"""The failures of a report, and their lines of code."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnbench.checking.check_report import CheckReport
from attnbench.checking.outcomes import Outcome
from attnbench.checking.works import Work
from attnbench.errors import AttnbenchError
from attnbench.processes.pool import Task, call

_ROOTS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
"""Variables that hold the folder of the repository, to which paths in annotations are relative."""
_BASE_BRANCHES = ("GITHUB_BASE_REF", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME")
"""Variables that hold the branch into which a change is to be merged."""
_TIMEOUT_S = 60.0
_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


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

    @property
    def failures(self) -> list[Outcome]:
        """The outcomes that are neither passed nor skipped."""
        return [outcome for outcome in self.report.outcomes if not outcome.ok]

    def place_of(self, outcome: Outcome) -> Place | None:
        """The line at which the subject raised the failure, or else the line of its code."""
        raised = outcome.failure.source_line if outcome.failure else None
        if raised:
            file, _, line = raised.rpartition(":")
            if Path(file).exists():
                return Place(_relative(Path(file)), int(line))
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
    subjects = {outcome.subject for outcome in report.outcomes if not outcome.ok}
    places = {}
    for work in works if located else ():
        if work.label in subjects and work.label not in places:
            lines = None
            with contextlib.suppress(AttnbenchError):  # it may hang or die as in its check
                function = "attnbench.checking.tasks:code_lines"
                arguments = {"target": work.target}
                lines = call(Task(work.label, function, arguments, timeout_s=_TIMEOUT_S))
            if lines is not None:
                places[work.label] = place_at(*lines)
    return Findings(report, statements, places)


def place_at(file: str, line: int, first: int, last: int) -> Place:
    """The first changed line within the code, else in its file, or else the line itself."""
    lines = _changed_lines(Path(file))
    own_lines = [number for number in lines if first <= number <= last]
    return Place(_relative(Path(file)), (own_lines or lines or [line])[0])


def _relative(path: Path) -> str:
    root = next((os.environ[name] for name in _ROOTS if os.environ.get(name)), ".")
    path, folder = path.resolve(), Path(root).resolve()
    return (path.relative_to(folder) if path.is_relative_to(folder) else path).as_posix()


def _changed_lines(path: Path) -> list[int]:
    """Lines of a file that differ from the base branch of the CI job, if it is fetched."""
    base = next((os.environ[name] for name in _BASE_BRANCHES if os.environ.get(name)), None)
    if base is None:
        return []
    lines: list[int] = []
    # since the merge base; in a checkout without history, against the branch itself
    for revisions in (f"origin/{base}...HEAD", f"origin/{base}"):
        command = ["git", "diff", "--unified=0", revisions, "--", path.name]
        try:
            diff = subprocess.run(  # noqa: S603  # arguments of our own, and a branch
                command, cwd=path.parent, capture_output=True, encoding="utf-8"
            )
        except OSError:  # no git here
            return []
        for start, count in _HUNK.findall(diff.stdout):
            lines += range(int(start), int(start) + max(1, int(count or 1)))
        if diff.returncode == 0:
            break
    return lines
