"""``attnbench compare`` of revisions whose work differs; 15 pairs take a minute."""

from __future__ import annotations

from pathlib import Path

from tests.cli_runs import git, run
from tests.plugins.comparing.test_compare_revisions import SCORES, left_over
from tests.plugins.comparing.test_compare_revisions import repository as repository


def test_a_revision_with_more_work_is_slower_and_the_working_tree_is_one_side(
    repository: Path,
) -> None:
    (repository / "scores.py").write_text(SCORES.format(scale=8, work=8))
    (repository / "notes.txt").write_text("not of git's\n")
    done = run("compare", "quick", "scores.py:SPEC", "--json", folder=repository)
    assert done.code == 1, done.out + done.err
    found = done.json
    (row,) = found["rows"]
    assert (row["subject"], row["verdict"]) == ("scores.py:SPEC", "slower")
    assert 0.2 < row["low"] < row["effect"] < row["high"]
    assert found["a"].startswith("quick (")
    assert "the working tree" in found["b"]
    assert "2 changed files" in found["b"]
    assert not left_over(repository)
    assert git(repository, "status", "--porcelain") == "M scores.py\n?? notes.txt"
