"""The hunk of a change from which a failure comes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from attnbench.cli.reviewed_changes import culprit, hunks_of
from tests.cli.formats.test_places import git

CODE = """\
import torch
from attnbench import ScoringSpec


class Mine(torch.nn.Module):
    def forward(self, query, key):
        scale = query.shape[-1] ** -0.5
        scores = query @ key.mT
        return scores * scale


SPEC = ScoringSpec(name="mine", make=lambda q, k: Mine(), equal_sizes=True, laws=["unit_variance"])
"""
COMMAND = "attnbench check mine.py:SPEC --profile quick --invariant=unit_variance"


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with three changed lines against the base branch, of which the last is a mistake."""
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "right")
    git(tmp_path, "update-ref", "refs/remotes/origin/main", "HEAD")
    text = CODE.replace("shape[-1]", "size(-1)").replace("key.mT", "key.transpose(-2, -1)")
    path.write_text(text.replace("scores * scale", "scores"))
    git(tmp_path, "commit", "-q", "-a", "-m", "a bug")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_BASE_REF", "main")
    return path


@pytest.mark.slow
def test_it_is_the_one_without_which_the_check_passes(changed: Path) -> None:
    hunks = hunks_of(str(changed))
    assert [list(hunk.lines) for hunk in hunks] == [[7], [8], [9]]
    assert culprit(hunks[1:], COMMAND, 1) == hunks[2]
    assert culprit(hunks[:1], COMMAND, 1) is None
    trees = subprocess.run(["git", "worktree", "list"], capture_output=True, text=True, check=True)
    assert len(trees.stdout.splitlines()) == 1


def test_outside_of_a_repository_and_without_a_base_branch_there_is_none(
    changed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "mine.py"
    elsewhere.write_text(CODE)
    assert hunks_of(str(elsewhere)) == []
    monkeypatch.delenv("GITHUB_BASE_REF")
    assert hunks_of(str(changed)) == []
