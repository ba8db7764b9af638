"""Which tokens and items an output depends on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import LayerSpec
from attnbench.checking.check_report import CheckReport


class Linear(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden)


def checked(make: Any, *names: str, **fields: Any) -> CheckReport:
    spec = LayerSpec(name="layer", make=make, **fields)
    return attnbench.check(spec, profile="quick", invariants=names)


class MovingMean(Linear):
    """The mean of the tokens so far, divided by as many as there are in all."""

    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden.cumsum(1) / max(1, hidden.shape[1]))


class Causal(nn.Module):
    """Causal attention; how queries, keys and the mask follow the length is left open."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.qkv, self.table = nn.Linear(size, 3 * size), nn.Parameter(torch.randn(64, size))

    def bias(self, query: Tensor) -> Tensor:
        return query.new_zeros(())

    def rates(self, length: int) -> Tensor:
        return torch.zeros(self.size // 2, dtype=torch.float64)

    def scale(self, length: int) -> float:
        return 1.0

    def near(self, at: Tensor) -> Tensor:
        return at[:, None] >= at

    def turned(self, tensor: Tensor) -> Tensor:
        angles = torch.arange(tensor.shape[1])[:, None] * self.rates(tensor.shape[1])
        cos, sin = angles.cos().to(tensor), angles.sin().to(tensor)
        one, two = tensor.chunk(2, -1)
        return torch.cat([one * cos - two * sin, one * sin + two * cos], -1)

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.qkv(hidden).chunk(3, -1)
        at = torch.arange(hidden.shape[1])
        scores = self.turned(query) @ self.turned(key).mT / self.size**0.5 + self.bias(query)
        scores = scores * self.scale(hidden.shape[1])
        weights = scores.masked_fill(~self.near(at), float("-inf")).softmax(-1)
        return hidden + weights @ value


class TemperatureByLength(Causal):
    def scale(self, length: int) -> float:
        return math.log(2 + length)


class BaseByLength(Causal):
    """Rotary positions whose base grows with the length."""

    def rates(self, length: int) -> Tensor:
        half = self.size // 2
        return (10.0 * max(1.0, length / 2 - 1) ** 1.5) ** (-torch.arange(half) / half).double()


class QuartersOfTheLength(Causal):
    """A token sees what is in its own quarter of the sequence."""

    def near(self, at: Tensor) -> Tensor:
        own = at // max(1, -(-len(at) // 4))
        return super().near(at) & (own[:, None] == own)


EVEN = {"causal": True, "sizes": lambda size: max(4, size // 2 * 2)}


@pytest.mark.parametrize(
    "make", [TemperatureByLength, BaseByLength, QuartersOfTheLength, MovingMean]
)
def test_a_scale_that_follows_the_length_by_design_is_not_accused_but_named(make: Any) -> None:
    report = checked(make, "later_tokens_are_invisible", **EVEN)
    assert report.ok, str(report)
    assert "whether outputs may follow the number of later tokens" in str(report)
    relative = checked(
        make, "later_tokens_are_invisible", conventions={"positions": "relative"}, **EVEN
    )
    assert not relative.ok
    assert "may follow the number" not in str(relative)
