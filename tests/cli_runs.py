"""Running the command line here, by default from the folder of ``bad_subjects.py``, or apart."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.cli import main

__all__ = ["HERE", "SUM", "Result", "git", "outcome", "python", "run", "started"]

HERE = Path(__file__).parent
SUM = ("--invariant", "weights_sum_to_one", "--profile", "quick")


@dataclass(frozen=True)
class Result:
    """What a command gave: its exit code, and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """What it wrote, read as JSON."""
        return json.loads(self.out)


def run(*arguments: str, folder: Path = HERE) -> Result:
    """What ``attnbench`` does with these arguments."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main(arguments)
    return Result(code, out.getvalue(), err.getvalue())


def python(
    *arguments: str | Path, folder: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """What a Python of its own gives for these arguments, with further environment variables."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def started(*arguments: str, folder: Path = HERE, **more: Any) -> subprocess.Popen[str]:
    """``attnbench`` in a process of its own, which a test interrupts."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", "attnbench", *arguments]
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, cwd=folder, text=True, **more)


def git(folder: Path, *arguments: str) -> str:
    """What git prints in a folder, for an author that no settings name."""
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def outcome(result: Result, subject: str, invariant: str = "weights_sum_to_one") -> dict[str, Any]:
    """The one outcome of a subject and an invariant, from ``check --json``."""
    (found,) = [
        o for o in result.json["outcomes"] if (o["subject"], o["invariant"]) == (subject, invariant)
    ]
    return dict(found)
