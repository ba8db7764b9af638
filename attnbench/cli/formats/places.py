"""The failures of a report, and the lines of code at which they stand."""

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
_BASE = ("GITHUB_BASE_REF", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME")
"""Variables that hold the branch into which a change is to be merged."""
_FIND_S = 60.0
_HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


@dataclass(frozen=True, order=True)
class Place:
    """A line of a file."""

    file: str
    line: int


@dataclass(frozen=True)
class Findings:
    """What was found, for the formats."""

    report: CheckReport
    statements: Mapping[str, str]
    places: Mapping[str, Place] = field(default_factory=dict)

    @property
    def bad(self) -> list[Outcome]:
        """The outcomes that are neither passed nor skipped."""
        return [outcome for outcome in self.report.outcomes if not outcome.ok]

    def place_of(self, outcome: Outcome) -> Place | None:
        """Where the subject raised the failure, or else where its code stands."""
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
        works: what was run, for the addresses of the subjects.
        located: whether to find the subjects' code, for which each is made in a child process.
    """
    bad = {outcome.subject for outcome in report.outcomes if not outcome.ok}
    places = {}
    for work in works if located else ():
        if work.label in bad and work.label not in places:
            found = None
            with contextlib.suppress(AttnbenchError):  # it may hang or die as in its check
                inside = "attnbench.checking.tasks:code_lines"
                given = {"target": work.target}
                found = call(Task(work.label, inside, given, timeout_s=_FIND_S))
            if found is not None:
                places[work.label] = place_at(*found)
    return Findings(report, statements, places)


def place_at(file: str, line: int, first: int, last: int) -> Place:
    """The line of the code that the change under review touched, or else the line as it is."""
    changed = _changed_lines(Path(file))
    within = [number for number in changed if first <= number <= last]
    return Place(_relative(Path(file)), (within or changed or [line])[0])


def _relative(path: Path) -> str:
    root = next((os.environ[name] for name in _ROOTS if os.environ.get(name)), ".")
    path, folder = path.resolve(), Path(root).resolve()
    return (path.relative_to(folder) if path.is_relative_to(folder) else path).as_posix()


def _changed_lines(path: Path) -> list[int]:
    """Lines of a file that differ from the branch into which CI is to merge, if it is fetched."""
    base = next((os.environ[name] for name in _BASE if os.environ.get(name)), None)
    if base is None:
        return []
    lines: list[int] = []
    # since they parted; or, in a checkout without history, whose commit is the merge, at all
    for revisions in (f"origin/{base}...HEAD", f"origin/{base}"):
        command = ["git", "diff", "--unified=0", revisions, "--", path.name]
        try:
            done = subprocess.run(  # noqa: S603  # arguments of our own, and a branch
                command, cwd=path.parent, capture_output=True, encoding="utf-8"
            )
        except OSError:  # no git here
            return []
        for start, count in _HUNK.findall(done.stdout):
            lines += range(int(start), int(start) + max(1, int(count or 1)))
        if done.returncode == 0:
            break
    return lines
