"""Results that have too few digits under autocast."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import LayerSpec


class Rotary(nn.Module):
    """Angles are a product of matrices, which autocast rounds unless it is switched off."""

    def __init__(self, size: int, guarded: bool) -> None:
        super().__init__()
        self.out, self.guarded = nn.Linear(size, size), guarded

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu") and not self.guarded):
            places = 1000.0 + torch.arange(hidden.shape[1])[:, None]
            angles = places @ torch.ones(1, hidden.shape[2])
        turned = hidden * angles.cos() + hidden.flip(-1) * angles.sin()
        output: Tensor = self.out((turned @ turned.mT).softmax(-1) @ turned)
        return output


@pytest.mark.parametrize("guarded", [False, True])
def test_positions_that_autocast_rounds_are_found(guarded: bool) -> None:
    spec = LayerSpec(
        name="rotary", make=lambda size: Rotary(size, guarded), dtypes=("float64", "float32")
    )
    (found,) = attnbench.check(spec, profile="quick", invariants=["autocast_agrees"]).outcomes
    assert found.status == ("passed" if guarded else "failed")
