"""Which tokens an output depends on where it follows the length by design."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import LayerSpec
from tests.invariant_runs import zoo


class MovingMean(nn.Linear):
    """The mean of the tokens so far, divided by as many as there are in all."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden.cumsum(1) / max(1, hidden.shape[1]))


class MeanOfTheQuarter(MovingMean):
    """A token sees what is before it in its own quarter of the sequence."""

    def forward(self, hidden: Tensor) -> Tensor:
        length = hidden.shape[1]
        own = torch.arange(length) // max(1, -(-length // 4))
        seen = (own[:, None] == own).tril().to(hidden)
        return hidden + nn.Linear.forward(self, seen @ hidden / seen.sum(-1, keepdim=True))


FOLLOW_THE_LENGTH = [
    LayerSpec(name="moving_mean", make=MovingMean, causal=True),
    LayerSpec(name="mean_of_the_quarter", make=MeanOfTheQuarter, causal=True),
    replace(zoo("temperature_follows_the_length"), conventions={}),
]


@pytest.mark.parametrize("spec", FOLLOW_THE_LENGTH, ids=lambda spec: spec.name)
def test_a_scale_that_follows_the_length_by_design_is_not_accused_but_named(
    spec: LayerSpec,
) -> None:
    asked = "whether outputs may follow the number of later tokens"
    report = attnbench.check(spec, profile="quick", invariants=["later_tokens_are_invisible"])
    assert report.ok, str(report)
    assert asked in str(report)
    relative = replace(spec, conventions={"positions": "relative"})
    report = attnbench.check(relative, profile="quick", invariants=["later_tokens_are_invisible"])
    assert not report.ok
    assert asked not in str(report)
