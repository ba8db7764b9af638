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
