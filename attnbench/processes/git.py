"""The user's git: what it prints, and temporary worktrees of a repository."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
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


@contextlib.contextmanager
def worktree(top: Path, commit: str = "HEAD") -> Iterator[Path]:
    """A detached worktree of a repository, alone in a temporary folder; removed at the end.

    Raises:
        UsageError: git fails, or is not installed.
    """
    folder = Path(tempfile.mkdtemp(prefix="attnbench-worktree-")).resolve()
    copy = folder / top.name
    try:
        git(top, "worktree", "add", "--detach", "--force", str(copy), commit)
        yield copy
    finally:
        # not "worktree prune": it also drops worktrees on disks that are not mounted right now
        with contextlib.suppress(UsageError):
            git(top, "worktree", "remove", "--force", str(copy))
        shutil.rmtree(folder, ignore_errors=True)
