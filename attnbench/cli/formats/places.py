"""The failures of a report, and their lines of code: those that a change under review wrote."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnbench.checking.check_report import CheckReport
from attnbench.checking.outcomes import GOOD, Outcome
from attnbench.checking.report_text import lead_of
from attnbench.checking.work import Work
from attnbench.errors import AttnbenchError, UsageError
from attnbench.processes.git import git, worktree
from attnbench.processes.pool import Task, call

_ROOTS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
"""Variables that hold the folder of the repository, to which paths in annotations are relative."""
_NO_EFFECT = ("#", "import ", "from ", '"""', "'''")
_TIMEOUT_S = 60.0
_BASE_BRANCHES = ("GITHUB_BASE_REF", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME")
"""Variables that hold the branch into which a change is to be merged."""
_HUNK = re.compile(r"^(?=@@ -\S+ \+\d+)", re.MULTILINE)
_ADDED = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")
_SEARCH_S = 240.0
"""Seconds after which no further hunk is tried."""


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


@dataclass(frozen=True)
class Hunk:
    """Neighbouring lines of a file that differ from the base branch, and the patch that did it."""

    file: str
    lines: range
    patch: str


def hunks_of(file: str) -> list[Hunk]:
    """The hunks of a file against the base branch of the CI job; none where that is not fetched."""
    base = next((os.environ[name] for name in _BASE_BRANCHES if os.environ.get(name)), None)
    if base is None:
        return []
    path = Path(file)
    # since the merge base; in a checkout without history, against the branch itself
    for revisions in (f"origin/{base}...HEAD", f"origin/{base}"):
        with contextlib.suppress(UsageError):
            diff = git(path.parent, "diff", "--unified=0", revisions, "--", path.name) + "\n"
            head, *bodies = _HUNK.split(diff)
            pieces = [piece for body in bodies for piece in _line_by_line(body)]
            return [Hunk(file, _lines(piece), head + piece) for piece in pieces]
    return []


def culprit(hunks: Sequence[Hunk], command: str, failures: int) -> Hunk | None:
    """The hunk without which fewest checks of a command fail; ``None`` if all fail without any.

    Each is taken back alone, in another checkout of the commit.

    Args:
        hunks: the hunks that may be it.
        command: the command that runs the checks.
        failures: how many of them fail with all hunks.
    """
    end, found = time.monotonic() + _SEARCH_S, None
    # outside of the repository; too slow; git fails
    with contextlib.suppress(ValueError, subprocess.TimeoutExpired, UsageError):
        top = Path(git(Path(hunks[0].file).parent, "rev-parse", "--show-toplevel")).resolve()
        place = Path.cwd().resolve().relative_to(top)
        with worktree(top) as copy:
            for hunk in hunks:
                with contextlib.suppress(UsageError):  # it cannot be taken back alone
                    git(copy, "apply", "-R", "--unidiff-zero", "-", given=hunk.patch)
                    left = _failures(command, copy / place, end - time.monotonic())
                    if left is not None and left < failures:
                        found, failures = hunk, left
                    git(copy, "checkout", "-q", ".")
                if not failures:
                    break
    return found


def _line_by_line(body: str) -> list[str]:
    """A hunk, as one of each line if it has as many lines as before."""
    head, *lines = body.splitlines(keepends=True)
    old, new = ([line for line in lines if line[0] == sign] for sign in "-+")
    if len(old) != len(new) or len(old) + len(new) < len(lines):
        return [body]
    first = _lines(head)[0]
    places = (f"@@ -{first + i} +{first + i} @@\n" for i in range(len(new)))
    return ["".join(piece) for piece in zip(places, old, new, strict=True)]


def _lines(body: str) -> range:
    found = _ADDED.match(body)
    assert found is not None, body
    first = int(found[1])
    return range(first, first + max(1, int(found[2] or 1)))


def _failures(command: str, folder: Path, seconds: float) -> int | None:
    """How many checks of a command fail; ``None`` if it gives no outcomes."""
    words = [sys.executable, "-m", "attnbench", *shlex.split(command)[1:], "--json"]
    done = subprocess.run(  # noqa: S603  # a command of our own
        words, cwd=folder, capture_output=True, timeout=max(seconds, 0.0), check=False
    )
    try:
        outcomes = json.loads(done.stdout)["outcomes"]
    except ValueError:  # the code cannot be imported without this hunk
        return None
    return sum(outcome["status"] not in GOOD for outcome in outcomes)
