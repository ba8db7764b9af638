"""The user's git: what it prints."""

from __future__ import annotations

import subprocess
from pathlib import Path

from attnbench.errors import UsageError


def git(folder: Path, *arguments: str) -> str:
    """What git prints in a folder, without the newline at its end.

    Raises:
        UsageError: git fails, or is not installed.
    """
    try:
        process = subprocess.run(  # noqa: S603 -- arguments of our own, and a revision
            ["git", *arguments],  # noqa: S607 -- the git that the user would run
            cwd=folder,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
    except OSError as error:
        raise UsageError(f"git cannot be run: {error.strerror or error}.") from None
    if process.returncode != 0:
        message = process.stderr.strip() or f"exit status {process.returncode}"
        raise UsageError(f"git {arguments[0]} failed in {folder}: {message}")
    return process.stdout.strip("\n")
