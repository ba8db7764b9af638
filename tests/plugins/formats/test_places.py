"""The lines at which failures are shown: where it was raised, or where the code begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnbench.checking.check_report import CheckReport
from attnbench.checking.outcomes import Failure, Outcome
from attnbench.report.findings import Findings, Place, code_line, place_at
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(("attribute", "line"), [("SPEC", 17), ("FUSED", 25), ("LAYER", 31)])
def test_it_is_the_line_where_the_computation_begins(
    folder: Path, attribute: str, line: int
) -> None:
    (subject,) = resolve(f"mine.py:{attribute}")
    found = code_line(subject)
    assert found is not None
    assert place_at(*found) == Place("mine.py", line)


def test_an_exception_stands_at_the_line_that_raised_it(folder: Path) -> None:
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
    assert code_line(subject) is None
