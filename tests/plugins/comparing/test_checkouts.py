"""Checkouts of the user's repository: nothing of it is touched, and nothing is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
from attnbench_plugins.comparing.checkouts import checkout

from tests.cli_runs import git


@pytest.fixture
def top(tmp_path: Path) -> Path:
    top = tmp_path / "repository"
    top.mkdir()
    git(top, "init", "-q")
    outside = tmp_path / "outside.py"
    outside.write_text("mine\n")
    (top / "score.py").symlink_to(outside)
    git(top, "add", "-A")
    git(top, "commit", "-qm", "one")
    return top


def test_a_file_in_the_place_of_a_link_is_not_written_through_it(top: Path) -> None:
    (top / "score.py").unlink()
    (top / "score.py").write_text("changed\n")
    with checkout(top, None, build=False) as side:
        assert (side.folder / "score.py").read_text() == "changed\n"
    assert (top.parent / "outside.py").read_text() == "mine\n"


def test_what_is_new_removed_or_staged_is_in_the_checkout_and_the_users_index_stays(
    top: Path,
) -> None:
    (top / "gone.py").write_text("gone\n")
    (top / ".gitignore").write_text("*.log\n")
    git(top, "add", "-A")
    git(top, "commit", "-qm", "two")
    (top / "gone.py").unlink()
    (top / "new.py").write_text("new\n")
    (top / "a.log").touch()
    (top / "__pycache__").mkdir()
    (top / "__pycache__" / "new.pyc").touch()
    before = git(top, "status", "--porcelain")
    with checkout(top, None, build=False) as side:
        assert {p.name for p in side.folder.iterdir()} == {
            ".git",
            ".gitignore",
            "new.py",
            "score.py",
        }
        assert side.name.endswith(", 2 changed files)")
    assert git(top, "status", "--porcelain") == before


def test_another_worktree_whose_folder_is_away_is_still_known_afterwards(top: Path) -> None:
    away = top.parent / "away"
    git(top, "worktree", "add", "-q", "--detach", str(away))
    away.rename(top.parent / "unmounted")
    with checkout(top, "HEAD", build=False):
        pass
    listed = git(top, "worktree", "list")
    assert "away" in listed
    assert "attnbench-worktree-" not in listed
