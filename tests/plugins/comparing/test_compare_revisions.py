"""``attnbench compare`` of revisions of a scratch repository, as a user runs it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

import attnbench
from tests.cli_runs import git, run, started

TOO_FEW = "out of time after 1 pair, too few for an interval"
SCORES = """\
import attnbench
import torch


class Scores(torch.nn.Module):
    def __init__(self, query_size, key_size):
        super().__init__()

    def forward(self, query, key):
        found = query @ key.mT / {scale}
        for _ in range({work}):
            found = torch.maximum(found, query @ key.mT / {scale})
        return found


SPEC = attnbench.ScoringSpec(name="mine", make=Scores, equal_sizes=True)
BOTH = [SPEC, attnbench.ScoringSpec(name="theirs", make=Scores, equal_sizes=True)]
"""


def commit(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", name)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Commits: once the work, thrice the work, another answer, and one that cannot be imported."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    for tag, text in (
        ("quick", SCORES.format(scale=8, work=2)),
        ("slow", SCORES.format(scale=8, work=8)),
        ("other", SCORES.format(scale=9, work=2)),
        ("broken", "def scores(:\n"),
    ):
        commit(folder, "scores.py", text)
        git(folder, "tag", tag)
    git(folder, "checkout", "-q", "quick")
    return folder


def left_over(folder: Path) -> list[str]:
    return git(folder, "worktree", "list").splitlines()[1:]


def test_another_answer_is_not_timed_and_exits_with_4(repository: Path) -> None:
    done = run("compare", "quick", "other", "scores.py:SPEC", "--json", folder=repository)
    assert done.code == 4, done.out + done.err
    (row,) = done.json["rows"]
    assert (row["verdict"], row["timed"], row["effect"]) == ("ambiguous", False, None)
    assert "gives another answer: its output differs" in row["reason"]


def test_revisions_are_compared_from_python_too(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    found = attnbench.compare("quick", "slow", "scores.py:SPEC", budget=0)
    assert [row["reason"] for row in found.data["rows"]] == [TOO_FEW]
    assert "\nscores.py:SPEC " in repr(found)
    assert not left_over(repository)


def test_a_row_of_several_is_named_as_the_table_shows_it(repository: Path) -> None:
    arguments = ("quick", "slow", "--budget", "0", "--json")
    found = run("compare", *arguments, "scores.py:BOTH", folder=repository)
    names = [row["subject"] for row in found.json["rows"]]
    assert names == ["scores.py:BOTH#mine", "scores.py:BOTH#theirs"]
    alone = run("compare", *arguments, names[1], folder=repository)
    assert [row["subject"] for row in alone.json["rows"]] == names[1:]


def test_without_subjects_the_table_of_the_project_names_them(repository: Path) -> None:
    (repository / "pyproject.toml").write_text('[tool.attnbench]\ntargets = ["scores.py:SPEC"]\n')
    done = run("compare", "quick", "--budget", "0", "--json", folder=repository)
    assert [row["subject"] for row in done.json["rows"]] == ["scores.py:SPEC"], done.err


def test_a_subject_that_is_new_is_noted_and_the_others_are_compared(repository: Path) -> None:
    (repository / "new.py").write_text(SCORES.format(scale=8, work=2))
    both = run(
        "compare", "quick", "new.py:SPEC", "scores.py:SPEC", "--budget", "0", "--json",
        folder=repository,
    )  # fmt: skip
    assert [row["subject"] for row in both.json["rows"]] == ["scores.py:SPEC"], both.err
    assert "new.py:SPEC is not compared: quick" in both.json["notes"][-1]
    alone = run("compare", "quick", "new.py:SPEC", folder=repository)
    assert alone.code == 4, alone.out + alone.err
    assert alone.out.splitlines()[-1].startswith("Note: new.py:SPEC is not compared: quick")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("quck", "scores.py:SPEC"), "Did you mean 'quick'"),
        (("quick", "slow", "scores.py:SPEX"), "has no attribute 'SPEX'"),
        (("quick", "slow", "scores.py:BOTH#his"), "lists no 'his'"),
        (("quick", "slow", "gone.py:SPEC"), "there is no file 'gone.py'"),
        (("quick", "broken", "scores.py:SPEC"), "invalid syntax"),
        (("quick", "slow"), "has no pyproject.toml or setup.py"),
        (("scores.py:SPEC",), "or two subjects"),
        (("quick", "slow", "other"), "at most two revisions"),
    ],
)
def test_bad_input_is_one_clear_error(
    repository: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    done = run("compare", *arguments, folder=repository)
    assert done.code == 2, done.out + done.err
    assert done.err.startswith("attnbench: ")
    assert complaint in done.err
    assert "Traceback" not in done.err
    assert not left_over(repository)


def test_a_revision_that_does_not_build_says_what_pip_said(repository: Path) -> None:
    git(repository, "checkout", "-q", "main")
    commit(repository, "pyproject.toml", "[project]\nname = 3\n")
    done = run("compare", "HEAD", folder=repository)
    assert done.code == 2, done.out + done.err
    assert "does not build" in done.err
    assert not left_over(repository)


def test_ctrl_c_removes_the_worktrees_and_ends_soon(repository: Path) -> None:
    words = ("compare", "quick", "slow", "scores.py:SPEC")
    process = started(*words, folder=repository, start_new_session=True)
    until = time.monotonic() + 60
    build = psutil.Process(process.pid).children
    while not (len(left_over(repository)) == 2 and build()) and time.monotonic() < until:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=20)
    assert process.returncode == 130
    assert not left_over(repository)
