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


class Logarithm(torch.nn.Module):
    """A bias by the logarithm of a distance that may be negative."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        behind = query.shape[-2] - 1 - torch.arange(key.shape[-2])
        return query @ key.mT - torch.log1p(behind.to(query))


def test_the_operation_that_changes_an_input_is_named() -> None:
    def scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query *= query.shape[-1] ** -0.5
        return (query @ key.mT).softmax(-1) @ value

    spec = attnbench.adapters.sdpa(scaled)
    report = attnbench.check(spec, profile="quick", invariants=["keeps_the_contract"])
    assert "first changed by mul at test_answer_faults.py:" in str(report)
    assert "query *= query.shape[-1] ** -0.5" in str(report)


def test_no_operation_of_torch_is_named_where_another_library_changes_an_input() -> None:
    def scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query.detach().numpy()[...] *= 0.5
        return (query @ key.mT).softmax(-1) @ value

    spec = attnbench.adapters.sdpa(scaled)
    report = attnbench.check(spec, profile="quick", invariants=["keeps_the_contract"])
    assert "changes its input" in str(report)
    assert "first in" not in str(report)


def test_a_changed_input_is_told_of_a_layer_that_raises_where_operations_are_listened_to() -> None:
    def scaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if torch.utils._python_dispatch._get_current_dispatch_mode() is not None:
            raise RuntimeError("not beside a mode")
        query *= 0.5
        return (query @ key.mT).softmax(-1) @ value

    spec = attnbench.adapters.sdpa(scaled)
    report = attnbench.check(spec, profile="quick", invariants=["keeps_the_contract"])
    assert "changes its input" in str(report)


OWN = torch.Generator()


class Draws(torch.nn.Module):
    """A layer that draws numbers in evaluation, each kind in a line of its own."""

    def __init__(self, size: int, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = torch.nn.Linear(size, size), kind

    def forward(self, hidden: Tensor) -> Tensor:
        """Output ``(B, L, E)``."""
        output: Tensor = self.linear(hidden)
        if self.kind == "path":
            return output * output.new_empty(len(output), 1, 1).bernoulli_(0.5)
        if self.kind == "dropout":
            return torch.nn.functional.dropout(output, 0.5)
        if self.kind == "attention":
            attend = torch.nn.functional.scaled_dot_product_attention
            return attend(output, output, output, dropout_p=0.5)
        if self.kind == "python":
            return output * random.random()
        if self.kind == "numpy":
            return output * numpy.random.rand()
        if self.kind == "own":
            return output * torch.rand((), generator=OWN)
        return output + torch.randn_like(output)


@pytest.mark.parametrize(
    ("kind", "name", "what"),
    [
        ("path", "bernoulli_", "drops at random in evaluation"),
        ("dropout", "dropout", "drops at random in evaluation"),
        ("attention", "scaled_dot_product_attention", "drops at random in evaluation"),
        ("noise", "randn_like", "draws random numbers"),
        ("own", "rand", "draws random numbers"),
    ],
)
def test_what_draws_random_numbers_in_evaluation_is_named(kind: str, name: str, what: str) -> None:
    spec = attnbench.LayerSpec(name="draws", make=lambda size: Draws(size, kind))
    report = attnbench.check(spec, profile="quick", invariants=["keeps_the_contract"])
    (outcome,) = report.outcomes
    assert outcome.failure is not None
    assert outcome.failure.fault == "random"
    assert f"in which it {what} by {name} (" in outcome.reason
    assert "test_answer_faults.py:" in outcome.reason


@pytest.mark.parametrize(
    ("kind", "name"), [("python", "Python's random"), ("numpy", "numpy.random")]
)
def test_random_numbers_that_are_not_of_torch_are_told(kind: str, name: str) -> None:
    spec = attnbench.LayerSpec(name="draws", make=lambda size: Draws(size, kind))
    report = attnbench.check(spec, profile="quick", invariants=["keeps_the_contract"])
    (outcome,) = report.outcomes
    assert outcome.failure is not None
    assert outcome.failure.fault == "random"
    assert f"in which it draws random numbers by {name}" in outcome.reason


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
