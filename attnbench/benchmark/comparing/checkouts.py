"""Temporary checkouts of the user's repository, at a revision or with its uncommitted changes.

The user's working tree is not touched. Worktrees are detached, and always removed at the end. This
module does not import torch.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnbench.benchmark.comparing.exchange import Side
from attnbench.errors import UsageError
from attnbench.processes.git import git, worktree

_PROJECT_FILES = ("pyproject.toml", "setup.py")

_CACHES = {"__pycache__", ".hypothesis"}
"""Folders that Python and Hypothesis write beside the code, which are no change of it."""


@dataclass(frozen=True)
class Repository:
    """A git repository, and the folder in it from which the command was run."""

    top: Path
    here: Path

    @contextlib.contextmanager
    def side(self, revision: str | None, *, build: bool) -> Iterator[Side]:
        """Check out one side of a comparison; it exists while the context is open.

        Args:
            revision: a revision, or ``None`` for the working tree with its changes.
            build: whether to build and install the project, as subjects that are addressed by their
                registered name require.

        Raises:
            UsageError: the project does not build at this revision.
        """
        commit = git(self.top, "rev-parse", "--short", f"{revision or 'HEAD'}^{{commit}}")
        with worktree(self.top, commit) as top:
            name = f"{revision} ({commit})" if revision not in (None, commit) else commit
            if revision is None:
                count = self._copy_changes(top)
                state = f"{count} changed files" if count != 1 else "1 changed file"
                name = f"the working tree ({commit}, {state if count else 'clean'})"
            here = top / self.here.relative_to(self.top)
            here.mkdir(parents=True, exist_ok=True)
            roots: tuple[Path, ...] = ()
            if build:
                site = top.parent / "site"
                _install(_project(here, top, name), site, name)
                roots = (site,)
            else:
                roots = tuple(self._worktree_roots(top))
            yield Side(name, here, roots, top.parent)

    def _copy_changes(self, top: Path) -> int:
        """Copy uncommitted changes into a worktree; returns the number of changed files."""
        options = ("--porcelain", "-z", "--untracked-files=all", "--no-renames")
        status = git(self.top, "status", *options)
        changed = [entry[3:] for entry in status.split("\0") if entry]
        names = [name for name in changed if not _CACHES & {*Path(name).parts}]
        for name in names:
            source, target = self.top / name, top / name
            if target.is_symlink() or target.is_file():  # copy2 would follow a link and write there
                target.unlink()
            if source.is_symlink() or source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        return len(names)

    def _worktree_roots(self, top: Path) -> Iterator[Path]:
        """The entries of ``sys.path`` that are in the repository, moved to the worktree."""
        for entry in sys.path:
            path = Path(entry or ".").resolve()
            if path.is_relative_to(self.top):
                yield top / path.relative_to(self.top)


def repository(folder: Path) -> Repository:
    """Find the repository that contains a folder.

    Raises:
        UsageError: the folder is not in a repository, or git is not installed.
    """
    top = git(folder, "rev-parse", "--show-toplevel")
    return Repository(Path(top).resolve(), folder.resolve())


def commit_of(folder: Path, text: str) -> str | None:
    """Resolve a revision in the repository of a folder; ``None`` if there is no such commit."""
    if text.startswith("-"):
        return None
    with contextlib.suppress(UsageError):
        return git(folder, "rev-parse", "--verify", "--quiet", f"{text}^{{commit}}")
    return None


def branches(folder: Path) -> list[str]:
    """The names of the branches and tags in the repository of a folder."""
    with contextlib.suppress(UsageError):
        output = git(folder, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags")
        return output.splitlines()
    return []


def _project(here: Path, top: Path, name: str) -> Path:
    """The nearest folder, going up from ``here`` to ``top``, that contains a project."""
    for folder in (here, *here.parents):
        if any((folder / file).is_file() for file in _PROJECT_FILES):
            return folder
        if folder == top:
            break
    raise UsageError(
        f"{name} has no pyproject.toml or setup.py, so it registers no names. "
        "Address the subject by its file: path/to/file.py:ATTRIBUTE."
    )


def _install(project: Path, site: Path, name: str) -> None:
    """Install a project without its dependencies into a folder.

    Raises:
        UsageError: the project does not build.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    command += ["--disable-pip-version-check", "--target", str(site), str(project)]
    # the installed build tools usually suffice; if not, pip downloads those that the project needs
    for options in (["--no-build-isolation"], []):
        process = subprocess.run(  # noqa: S603 -- this Python's pip
            [*command, *options], capture_output=True, text=True, check=False
        )
        if process.returncode == 0:
            return
        errors = (process.stderr or process.stdout).strip().splitlines()[-6:]
    lines = "".join(f"\n  | {line}" for line in errors)
    raise UsageError(f"{name} does not build:{lines}")
