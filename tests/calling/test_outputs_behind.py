"""What an output layer behind the pooling of a memory makes of the context."""

from __future__ import annotations

import pytest
import torch
from attnbench_plugins.adapters.adaptation import spec_of
from torch import Tensor, nn

import attnbench
from tests.attention_functions import statuses


class Luong(nn.Module):
    """Global attention, whose context goes through an output layer with the query."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.score = nn.Linear(dimensions, dimensions, bias=False)
        self.out = nn.Linear(2 * dimensions, dimensions, bias=False)

    def context(self, weights: Tensor, memory: Tensor) -> Tensor:
        return weights @ memory

    def forward(self, query: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        weights = (self.score(query) @ context.mT).softmax(-1)
        both = torch.cat([self.context(weights, context), query], -1)
        return self.out(both).tanh(), weights


class Plain(Luong):
    """The same without the output layer."""

    def forward(self, query: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        weights = (self.score(query) @ context.mT).softmax(-1)
        return self.context(weights, context), weights


class Shifted(Plain):
    """It pools the slot before each."""

    def context(self, weights: Tensor, memory: Tensor) -> Tensor:
        return weights @ memory.roll(1, -2)


class Halved(Plain):
    """Its weights are divided once more."""

    def context(self, weights: Tensor, memory: Tensor) -> Tensor:
        return weights @ memory / 2


_SAID = "its output is more than weights times memory"


@pytest.mark.parametrize(
    ("target", "said"), [(Luong, True), (Plain, False), (Shifted, False), (Halved, False)]
)
def test_an_output_layer_behind_the_pooling_is_said(target: type[nn.Module], said: bool) -> None:
    notes: tuple[str, ...] = getattr(spec_of(target), "notes", ())
    assert (_SAID in notes[0]) == said


def _statuses(target: type[nn.Module], *names: str) -> dict[str, str]:
    return statuses(attnbench.check(spec_of(target), profile="quick", invariants=names))


def test_what_is_behind_the_pooling_is_checked_as_it_is() -> None:
    found = _statuses(Luong, "agrees_with_float64", "every_attendable_key_matters")
    assert found == {"agrees_with_float64": "passed", "every_attendable_key_matters": "skipped"}


@pytest.mark.parametrize("target", [Shifted, Halved])
def test_what_pools_the_wrong_slots_or_by_wrong_weights_fails(target: type[nn.Module]) -> None:
    names = ("agrees_with_float64", "keys_permute_freely", "output_lies_within_values")
    assert "failed" in _statuses(target, *names).values()
