"""The failures of a report, and their lines of code."""

from __future__ import annotations

import contextlib
import linecache
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnbench.checking.check_report import CheckReport
from attnbench.checking.outcomes import Outcome
from attnbench.checking.report_text import lead_of
from attnbench.checking.work import Work
from attnbench.cli.reviewed_changes import culprit, hunks_of
from attnbench.errors import AttnbenchError
from attnbench.processes.pool import Task, call

_ROOTS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
"""Variables that hold the folder of the repository, to which paths in annotations are relative."""
_NO_EFFECT = ("#", "import ", "from ", '"""', "'''")
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
    places = {}
    for target, label in {(work.target, work.label) for work in works if located}:
        failures = [outcome for outcome in report.failures if outcome.subject == label]
        if failures:
            lead = lead_of(failures)
            case = lead.failure.case if lead.failure else None
            arguments = {"target": target, "invariant": lead.invariant, "case": case}
            task = Task(label, "attnbench.checking.child_tasks:code_lines", arguments, _TIMEOUT_S)
            with contextlib.suppress(AttnbenchError):  # it may hang or die as in its check
                lines = call(task)
                if lines is not None:
                    others = [f"--invariant={o.invariant}" for o in failures if o is not lead]
                    command = lead.command and shlex.join(shlex.split(lead.command) + others)
                    places[label] = place_at(*lines, command=command, failures=len(failures))
    return Findings(report, statements, places)


def place_at(
    file: str,
    line: int,
    first: int,
    last: int,
    ran: Sequence[tuple[str, int]] = (),
    *,
    command: str | None = None,
    failures: int = 1,
) -> Place:
    """The first changed line that ran; else one of the code, of its file, or of others that ran.

    Without any, it is the line itself. What cannot change an answer, such as a comment, comes last.
    Where several changes ran, it is in the one without which fewest checks of the command fail.
    """
    files = dict.fromkeys([file, *(name for name, _ in ran)])
    hunks = [hunk for name in files for hunk in hunks_of(name)]
    changed = [(hunk.file, number) for hunk in hunks for number in hunk.lines]

    def rank(at: tuple[str, int]) -> tuple[bool, bool]:
        text = linecache.getline(*at).strip()
        is_own = at[0] == file and first <= at[1] <= last
        return not text or text.startswith(_NO_EFFECT), not is_own

    reached = [at for at in ran if at in changed]
    suspects = [h for h in hunks if any(at[0] == h.file and at[1] in h.lines for at in reached)]
    if command and len(suspects) > 1 and (found := culprit(suspects, command, failures)):
        reached = [at for at in reached if at[0] == found.file and at[1] in found.lines]
    name, number = [*reached, *sorted(changed, key=rank), (file, line)][0]
    return Place(_relative(Path(name)), number)


def _relative(path: Path) -> str:
    root = next((os.environ[name] for name in _ROOTS if os.environ.get(name)), ".")
    path, folder = path.resolve(), Path(root).resolve()
    return (path.relative_to(folder) if path.is_relative_to(folder) else path).as_posix()
