"""Temporary checkouts of the user's repository, at a revision or with its uncommitted changes.

The user's working tree is not touched. Worktrees are detached, and always removed at the end. This
module does not import torch.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from attnbench import UsageError
from attnbench.commands import git
from attnbench_plugins.comparing.exchange import Side

_PROJECT_FILES = ("pyproject.toml", "setup.py")

_CACHES = ("__pycache__", ".hypothesis")
"""Folders that Python and Hypothesis write beside the code, which are no change of it."""


@contextlib.contextmanager
def checkout(folder: Path, revision: str | None, *, build: bool) -> Iterator[Side]:
    """Check out one side of a comparison; it exists while the context is open.

    Args:
        folder: the folder of a repository in which addresses are looked up.
        revision: a revision, or ``None`` for the working tree with its changes.
        build: whether to build and install the project, as subjects that are addressed by their
            registered name require.

    Raises:
        UsageError: the folder is in no repository, git is not installed, or the project does not
            build at this revision.
    """
    own = Path(git(folder, "rev-parse", "--show-toplevel")).resolve()
    commit = git(own, "rev-parse", "--short", f"{revision or 'HEAD'}^{{commit}}")
    with _worktree(own, commit) as top:
        name = f"{revision} ({commit})" if revision not in (None, commit) else commit
        if revision is None:
            name = f"the working tree ({commit}, {_copy_changes(own, top)})"
        here = top / folder.resolve().relative_to(own)
        here.mkdir(parents=True, exist_ok=True)
        if build:
            site = top.parent / "site"
            roots: tuple[Path, ...] = (site,)
            _install(_project(here, top, name), site, name)
        else:
            paths = [Path(entry or ".").resolve() for entry in sys.path]
            roots = tuple(top / p.relative_to(own) for p in paths if p.is_relative_to(own))
        yield Side(name, here, roots, top.parent)


@contextlib.contextmanager
def _worktree(top: Path, commit: str) -> Iterator[Path]:
    """A detached worktree of a repository, alone in a temporary folder; removed at the end."""
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


def _copy_changes(own: Path, top: Path) -> str:
    """Copy uncommitted changes into a worktree, but what git ignores; says how many there are."""
    caches = [f":(exclude,glob)**/{name}/**" for name in _CACHES]
    # the index of the worktree takes up the files of the user's, whose own stays as it is
    git(own, f"--git-dir={top / '.git'}", f"--work-tree={own}", "add", "--all", "--", ".", *caches)
    git(top, "checkout-index", "--all", "--force")
    git(top, "clean", "-d", "--force", "--quiet")
    count = len(git(top, "diff", "--cached", "--name-only").splitlines())
    return {0: "clean", 1: "1 changed file"}.get(count, f"{count} changed files")


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
    """Install a project without its dependencies into a folder."""
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
