"""What a change under review did to a file, hunk by hunk, and which hunk a failure comes from."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attnbench.checking.outcomes import GOOD
from attnbench.errors import UsageError
from attnbench.processes.git import git, worktree

_BASE_BRANCHES = ("GITHUB_BASE_REF", "CI_MERGE_REQUEST_TARGET_BRANCH_NAME")
"""Variables that hold the branch into which a change is to be merged."""
_HUNK = re.compile(r"^(?=@@ -\S+ \+\d+)", re.MULTILINE)
_ADDED = re.compile(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@")
_SEARCH_S = 240.0
"""Seconds after which no further hunk is tried."""


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
