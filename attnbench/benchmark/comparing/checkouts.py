"""Checkouts: the user's own repository as it was at a revision, and as it is, in temporary folders.

Nothing in the user's working tree is touched. Worktrees are detached, and removed whatever happens.
Imports no torch.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnbench.benchmark.comparing.exchange import Side
from attnbench.errors import UsageError

__all__ = ["Repository", "branches", "commit_of", "repository"]

_PROJECT_FILES = ("pyproject.toml", "setup.py")


@dataclass(frozen=True)
class Repository:
    """A git repository, and the folder in it from which the command was called.

    Args:
        top: of its working tree.
        here: below that.
    """

    top: Path
    here: Path

    @contextlib.contextmanager
    def side(self, revision: str | None, *, build: bool) -> Iterator[Side]:
        """A side of a comparison.

        Args:
            revision: a revision, or ``None`` for the working tree as it is.
            build: whether to build and install the project, for subjects that are named by what it
                registers.

        Raises:
            UsageError: the revision does not build.
        """
        commit = _git(self.top, "rev-parse", "--short", f"{revision or 'HEAD'}^{{commit}}")
        with self._worktree(commit) as (folder, top):
            name = f"{revision} ({commit})" if revision not in (None, commit) else commit
            if revision is None:
                changed = self._take_over(top)
                state = f"{changed} changed files" if changed != 1 else "1 changed file"
                name = f"the working tree ({commit}, {state if changed else 'clean'})"
            here = top / self.here.relative_to(self.top)
            here.mkdir(parents=True, exist_ok=True)
            roots: tuple[Path, ...] = ()
            if build:
                site = folder / "site"
                _install(_project(here, top, name), site, name)
                roots = (site,)
            else:
                roots = tuple(self._moved_roots(top))
            yield Side(name, here, roots, folder)

    @contextlib.contextmanager
    def _worktree(self, commit: str) -> Iterator[tuple[Path, Path]]:
        folder = Path(tempfile.mkdtemp(prefix="attnbench-compare-")).resolve()
        top = folder / self.top.name
        try:
            _git(self.top, "worktree", "add", "--detach", "--force", str(top), commit)
            yield folder, top
        finally:
            # never "worktree prune": it forgets every worktree whose disk is away just now
            with contextlib.suppress(UsageError):
                _git(self.top, "worktree", "remove", "--force", str(top))
            shutil.rmtree(folder, ignore_errors=True)

    def _take_over(self, top: Path) -> int:
        """Bring what differs from the commit into a worktree; how many files those are."""
        options = ("--porcelain", "-z", "--untracked-files=all", "--no-renames")
        listed = _git(self.top, "status", *options)
        names = [entry[3:] for entry in listed.split("\0") if entry]
        for name in names:
            source, target = self.top / name, top / name
            if target.is_symlink() or target.is_file():  # a link would be written through
                target.unlink()
            if source.is_symlink() or source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target, follow_symlinks=False)
        return len(names)

    def _moved_roots(self, top: Path) -> Iterator[Path]:
        """What this Python finds modules by in the repository, as it lies in a worktree."""
        for entry in sys.path:
            path = Path(entry or ".").resolve()
            if path.is_relative_to(self.top):
                yield top / path.relative_to(self.top)


def repository(folder: Path) -> Repository:
    """The repository that a folder is in.

    Raises:
        UsageError: it is in none, or git is not there.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    return Repository(Path(top).resolve(), folder.resolve())


def commit_of(folder: Path, text: str) -> str | None:
    """The commit that a text names in the repository of a folder; ``None`` if it names none."""
    if text.startswith("-"):
        return None
    with contextlib.suppress(UsageError):
        return _git(folder, "rev-parse", "--verify", "--quiet", f"{text}^{{commit}}")
    return None


def branches(folder: Path) -> list[str]:
    """Names of the branches and tags of the repository of a folder."""
    with contextlib.suppress(UsageError):
        listed = _git(
            folder, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/tags"
        )
        return listed.splitlines()
    return []


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 -- arguments of our own, and a revision
            ["git", *arguments],  # noqa: S607 -- the git that the user would run
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise UsageError(f"git cannot be run: {error.strerror or error}.") from None
    if done.returncode != 0:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise UsageError(f"git {arguments[0]} failed in {folder}: {said}")
    return done.stdout.strip("\n")


def _project(here: Path, top: Path, name: str) -> Path:
    """The nearest folder upwards that holds a project."""
    for folder in (here, *here.parents):
        if any((folder / file).is_file() for file in _PROJECT_FILES):
            return folder
        if folder == top:
            break
    raise UsageError(
        f"{name} has no pyproject.toml or setup.py, so that nothing in it registers a name. "
        "Address a subject by its file: path/to/file.py:ATTRIBUTE."
    )


def _install(project: Path, site: Path, name: str) -> None:
    """Install a project, without its dependencies, into a folder.

    Raises:
        UsageError: it does not build.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    command += ["--disable-pip-version-check", "--target", str(site), str(project)]
    # the build tools that are installed do, as a rule; else pip fetches those that it asks for
    for more in (["--no-build-isolation"], []):
        done = subprocess.run(  # noqa: S603 -- this Python's pip
            [*command, *more], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return
        said = (done.stderr or done.stdout).strip().splitlines()[-6:]
    lines = "".join(f"\n  | {line}" for line in said)
    raise UsageError(f"{name} does not build:{lines}")
