"""The line that a report names where a result under autocast has too few digits."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import LayerSpec
from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation
from attnbench.invariants.calls.autocast import autocast_agrees
from attnbench.subject.lookup import resolve


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
def test_the_line_that_autocast_rounds_is_named(guarded: bool) -> None:
    spec = LayerSpec(
        name="rotary", make=lambda size: Rotary(size, guarded), dtypes=("float64", "float32")
    )
    (found,) = attnbench.check(spec, profile="quick", invariants=["autocast_agrees"]).outcomes
    line = r"float32 as the result of mm at \S+:\d+: angles = places @ torch\.ones"
    assert found.status == ("passed" if guarded else "failed")
    assert bool(re.search(line, found.reason)) == (not guarded), found.reason


class Cancels(nn.Module):
    """What cancels loses its digits in bfloat16; it does so in float32 behind a map of float32."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.map, self.out = nn.Linear(size, size), nn.Linear(size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        mapped = self.map(hidden)
        large = mapped.sum(-1, keepdim=True) * 1e4
        output: Tensor = self.out((mapped + large) - large)
        return output


def test_no_line_is_named_whose_result_counts_by_its_dtype_alone() -> None:
    (layer,) = resolve(LayerSpec(name="cancels", make=Cancels, dtypes=("float64", "float32")))
    with pytest.raises(InvariantViolation, match="under autocast to bfloat16, output") as found:
        autocast_agrees.check(layer, Case((2,), 4, 4, 4, 4, 4, dtype="float32"))
    assert "it is right with" not in str(found.value)
