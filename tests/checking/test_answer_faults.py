"""Where a subject raised, as a failure tells it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench.adapters import textbook

RAISES = """
import attnbench
import torch

class Raises(torch.nn.Module):
    def forward(self, query, key):
        raise ValueError("not today")

SPEC = attnbench.ScoringSpec(name="raises", make=lambda q, k: Raises(), equal_sizes=True)
"""


@pytest.mark.slow
def test_an_exception_names_the_users_line_in_a_folder_called_torch(tmp_path: Path) -> None:
    file = tmp_path / "torch" / "layers_of_mine.py"
    file.parent.mkdir()
    file.write_text(RAISES)
    report = attnbench.check(f"{file}:SPEC", profile="quick", invariants=["keeps_the_contract"])
    (outcome,) = report.of("failed")
    assert "ValueError: not today (layers_of_mine.py:7)" in outcome.reason


OWN = torch.Generator()


class Draws(torch.nn.Module):
    """A layer that draws numbers in evaluation, each kind in a line of its own."""

    def __init__(self, size: int, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = torch.nn.Linear(size, size), kind

    def forward(self, hidden: Tensor) -> Tensor:
        """Output ``(B, L, E)``."""
        output: Tensor = self.linear(hidden)
        if self.kind == "python":
            return output * random.random()
        if self.kind == "numpy":
            return output * numpy.random.rand()
        if self.kind == "own":
            return output * torch.rand((), generator=OWN)
        return output + torch.randn_like(output)


@pytest.mark.parametrize("kind", ["torch", "own", "python", "numpy"])
def test_random_numbers_in_evaluation_are_told(kind: str) -> None:
    spec = attnbench.LayerSpec(name="draws", make=lambda size: Draws(size, kind))
    report = attnbench.check(spec, profile="quick", invariants=["keeps_the_contract"])
    (outcome,) = report.outcomes
    assert outcome.failure is not None
    assert outcome.failure.fault == "random"
    assert ("it draws random numbers in evaluation" in outcome.reason) == (kind != "own")


class LayerDrop(torch.nn.Module):
    """Leaves a part out in training, by Python's random numbers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(size, size), torch.nn.Linear(size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        """Output ``(B, L, E)``."""
        hidden = hidden + self.one(hidden)
        return hidden if self.training and random.random() < 0.5 else hidden + self.two(hidden)


class DropsUntilEvaluation(torch.nn.Module):
    """A call in evaluation may set the rate to 0 for good."""

    def __init__(self, size: int, for_good: bool) -> None:
        super().__init__()
        self.out, self.rate, self.for_good = torch.nn.Linear(size, size), 0.5, for_good

    def forward(self, hidden: Tensor) -> Tensor:
        """Output ``(B, L, E)``."""
        rate = self.rate if self.training else 0.0
        if self.for_good:
            self.rate = rate
        return hidden + torch.dropout(self.out(hidden), rate, True)


@pytest.mark.parametrize("for_good", [False, True])
def test_a_call_in_evaluation_that_switches_dropout_off_for_good_is_told(for_good: bool) -> None:
    spec = attnbench.LayerSpec(name="drops", make=lambda n: DropsUntilEvaluation(n, for_good))
    report = attnbench.check(spec, profile="quick", invariants=["dropout_is_drawn_once"])
    assert report.ok != for_good
    assert ("behind a call in evaluation, output" in str(report)) == for_good


def test_what_is_dropped_in_training_by_another_generator_is_seeded_too() -> None:
    spec = attnbench.LayerSpec(name="drops", make=LayerDrop)
    names = ["dropout_is_drawn_once"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert report.outcomes[0].status != "failed", report.outcomes[0].reason


class DropsInEvaluation(nn.Module):
    """Textbook attention whose dropout does not look at ``training``."""

    def __init__(self, num_hiddens: int, dropout: float) -> None:
        super().__init__()
        self.out, self.p = nn.Linear(num_hiddens, num_hiddens), dropout

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Any = None) -> Any:
        scores = queries @ keys.mT
        if valid_lens is not None:
            hidden = torch.arange(keys.shape[1]) >= valid_lens.reshape(len(keys), -1, 1)
            scores = scores.masked_fill(hidden, -1e6)
        self.attention_weights = scores.softmax(-1)
        return self.out(nn.functional.dropout(self.attention_weights, self.p) @ values)


def test_what_drops_in_evaluation_keeps_nothing_and_hides_what_it_should() -> None:
    spec = textbook(DropsInEvaluation)
    (outcome,) = attnbench.check(spec, profile="quick", invariants=["keeps_the_contract"]).outcomes
    assert outcome.failure is not None
    assert outcome.failure.fault == "random"
    assert "kept" not in outcome.reason
