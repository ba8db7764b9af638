"""Which tokens and items an output depends on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import attnbench
from attnbench import LayerSpec


class Linear(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden)


class CountsTheItems(Linear):
    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden + torch.arange(len(hidden))[:, None, None])


def test_an_output_that_depends_on_the_place_of_its_item_is_told_so() -> None:
    spec = LayerSpec(name="counts_the_items", make=CountsTheItems)
    report = attnbench.check(spec, profile="quick", invariants=["items_are_independent"])
    (outcome,) = report.outcomes
    assert outcome.failure is not None
    assert outcome.failure.cause == "layer_item_place"
    assert "in each place of a batch" in str(report)


class RemembersACall(Linear):
    def forward(self, hidden: Tensor, seen: list[Tensor] = []) -> Tensor:  # noqa: B006 -- the bug
        seen.append(super().forward(hidden).mean())
        return super().forward(hidden) + len(seen)


def test_what_is_kept_in_a_default_argument_is_not_taken_for_random_numbers() -> None:
    spec = LayerSpec(name="remembers_a_call", make=RemembersACall)
    report = attnbench.check(spec, profile="quick", invariants=["keeps_the_contract"])
    (outcome,) = report.outcomes
    assert outcome.failure is not None
    assert outcome.failure.cause == "kept_or_unwritten"
    assert "random numbers" not in str(report)
