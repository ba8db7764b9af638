"""The lines at which failures are shown: where it was raised, what a change touched, the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attnbench.cases.case import Case
from attnbench.checking.check_report import CheckReport
from attnbench.checking.code_lines import code_lines
from attnbench.checking.outcomes import Failure, Outcome
from attnbench.cli.formats.places import Findings, Place, place_at
from attnbench.subject.lookup import resolve

CODE = '''\
"""Scores."""

import torch
from attnbench import ScoringSpec
from attnbench.adapters import layer, sdpa


def rows(x):
    return x / x.shape[-1] ** 0.25


class Mine(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.eye(size))

    def forward(self, query, key):
        query = rows(query)
        key = rows(key)
        query = query @ self.weight
        scores = query @ key.mT
        return scores


def fused(query, key, value, attn_mask=None):
    scores = query @ key.mT
    return scores.softmax(-1) @ value


class Block(torch.nn.Module):
    def forward(self, x):
        return fused(x, x, x)


SPEC = ScoringSpec(name="mine", make=lambda q, k: Mine(q), equal_sizes=True)
FUSED = sdpa(fused)
LAYER = layer(lambda size: Block(), name="block")
'''
EDITS = {
    "SPEC": [9, *range(12, 23)],
    "FUSED": [*range(25, 28), 9, 18, 21],
}
"""Lines to edit, by the attribute whose subject is checked: own code, and what it calls."""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "right")
    git(tmp_path, "update-ref", "refs/remotes/origin/main", "HEAD")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True)


def place_of(attribute: str) -> Place:
    (subject,) = resolve(f"mine.py:{attribute}")
    found = code_lines(subject)
    assert found is not None
    return place_at(*found)


def test_without_a_change_under_review_it_is_the_line_where_the_computation_begins(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_BASE_REF", raising=False)
    assert place_of("SPEC") == Place("mine.py", 17)
    assert place_of("FUSED") == Place("mine.py", 25)
    assert place_of("LAYER") == Place("mine.py", 31)
    monkeypatch.setenv("GITHUB_BASE_REF", "not-fetched")
    assert place_of("SPEC") == Place("mine.py", 17)


@pytest.mark.parametrize(
    ("attribute", "line"), [(name, line) for name, lines in EDITS.items() for line in lines]
)
def test_in_a_pull_request_it_is_the_line_that_was_changed(
    repository: Path, monkeypatch: pytest.MonkeyPatch, attribute: str, line: int
) -> None:
    file = repository / "mine.py"
    lines = CODE.splitlines()
    lines[line - 1] += "  # changed"
    file.write_text("\n".join(lines) + "\n")
    git(repository, "commit", "-q", "-a", "-m", "a bug")
    monkeypatch.setenv("GITHUB_BASE_REF", "main")
    assert place_of(attribute) == Place("mine.py", line)


SEEN = """\
import torch
from attnbench.adapters import sdpa
from mine_parts import weighted


def attention(query, key, value, is_causal=False):
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if is_causal:
        rows, columns = scores.shape[-2:]
        seen = torch.ones(rows, columns).tril(columns - rows) > 0
        scores = scores.masked_fill(~seen, -torch.inf)
    return weighted(scores, value)


SPEC = sdpa(attention, conventions={"causal": "bottom_right", "masks": ()})
"""
PARTS = """\
\"\"\"Parts.\"\"\"


def weighted(scores, value):
    return scores.softmax(-1).nan_to_num(0.0) @ value
"""


@pytest.mark.parametrize(
    ("file", "right", "wrong", "line", "mask"),
    [
        ("seen.py", "tril(columns - rows)", "tril(columns - rows + 1)", 10, "causal"),
        ("mine_parts.py", "softmax(-1)", "softmax(-2)", 5, "none"),
    ],
)
def test_of_several_changed_lines_it_is_one_that_the_failing_case_ran(
    repository: Path, monkeypatch: pytest.MonkeyPatch,
    file: str, right: str, wrong: str, line: int, mask: str,
) -> None:  # fmt: skip
    files = {"seen.py": SEEN, "mine_parts.py": PARTS}
    for name, text in files.items():
        (repository / name).write_text(text)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "right, too")
    git(repository, "update-ref", "refs/remotes/origin/main", "HEAD")
    changed = SEEN.replace("import torch", "import torch  # 2.11").replace(
        "masked_fill(~seen, -torch.inf)", "masked_fill(~seen, -torch.inf)  # unseen"
    )
    (repository / "seen.py").write_text(changed)
    (repository / file).write_text((repository / file).read_text().replace(right, wrong))
    git(repository, "commit", "-q", "-a", "-m", "a bug")
    monkeypatch.setenv("GITHUB_BASE_REF", "main")
    monkeypatch.syspath_prepend(repository)
    sys.modules.pop("mine_parts", None)
    (subject,) = resolve("seen.py:SPEC")
    case = Case(q_len=2, kv_len=3, mask=mask)
    found = code_lines(subject, "agrees_with_scalar_reference", case.id)
    assert found is not None
    assert place_at(*found) == Place(file, line)


def test_a_comment_that_was_changed_stands_behind_a_value_that_was(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = CODE.replace("import torch\n", "import torch  # 2.11\n").replace('mine"', 'ours"')
    (repository / "mine.py").write_text(change)
    git(repository, "commit", "-q", "-a", "-m", "a bug")
    monkeypatch.setenv("GITHUB_BASE_REF", "main")
    assert place_of("FUSED") == Place("mine.py", 35)


def test_a_line_that_was_removed_stands_at_the_one_before_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = CODE.splitlines()
    del lines[17]
    (repository / "mine.py").write_text("\n".join(lines) + "\n")
    git(repository, "commit", "-q", "-a", "-m", "a bug")
    monkeypatch.setenv("GITHUB_BASE_REF", "main")
    assert place_of("SPEC") == Place("mine.py", 17)


def test_an_exception_stands_at_the_line_that_raised_it(repository: Path) -> None:
    raising = Outcome("mine", "a", "failed", failure=Failure(source_line="mine.py:8"))
    elsewhere = Outcome("mine", "b", "failed", failure=Failure(source_line="gone.py:8"))
    findings = Findings(CheckReport((raising, elsewhere)), {}, {"mine": Place("mine.py", 17)})
    assert findings.place_of(raising) == Place("mine.py", 8)
    assert findings.place_of(elsewhere) == Place("mine.py", 17)


def test_code_of_which_there_is_no_source_has_no_place() -> None:
    from attnbench.adapters import sdpa

    space: dict[str, object] = {}
    exec("def made(query, key, value): return value", space)
    (subject,) = resolve(sdpa(space["made"]))
    assert code_lines(subject) is None
