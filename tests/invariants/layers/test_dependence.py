"""Which tokens and items an output depends on."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec
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


class PreNorm(Linear):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.norm = nn.LayerNorm(size)

    def forward(self, hidden: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        return hidden + self.linear(self.norm(hidden)).cumsum(1)


class Dilated(Linear):
    """A token and the one eight places before it."""

    def forward(self, hidden: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        earlier = nn.functional.pad(hidden, (0, 0, 8, 0))[:, : hidden.shape[1]]
        return hidden + super().forward(earlier)


def test_a_layer_that_skips_tokens_uses_some_of_many() -> None:
    new = CacheSpec(new=lambda module, batch_size: [])
    fields: dict[str, Any] = {"causal": True, "accepts": ("cache",), "cache": new}
    report = checked(Dilated, "outputs_depend_on_their_token", **fields)
    assert report.ok, str(report)


def test_a_norm_of_few_features_leaves_nothing_to_remember() -> None:
    new = CacheSpec(new=lambda module, batch_size: [])
    fields: dict[str, Any] = {"causal": True, "accepts": ("cache",), "cache": new}
    report = checked(PreNorm, "outputs_depend_on_their_token", **fields)
    assert report.ok, str(report)


class PostNorm(Linear):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.norm = nn.LayerNorm(size)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.norm(hidden + super().forward(hidden))


def test_a_norm_of_one_feature_leaves_nothing_to_depend_on() -> None:
    report = checked(PostNorm, "outputs_depend_on_their_token")
    assert report.ok, str(report)


class Fourier(Linear):
    """Mixes tokens and features in float32, whatever it is given."""

    def forward(self, hidden: Tensor) -> Tensor:
        mixed = torch.fft.fft2(super().forward(hidden).float()).real if hidden.numel() else hidden
        return hidden + mixed.to(hidden.dtype)


def test_a_layer_that_computes_in_float32_inside_may_round_by_layout_in_float64() -> None:
    report = checked(Fourier, "layouts_agree")
    assert report.ok, str(report)


class AloneOrAmongOthers(nn.Module):
    """A token sees itself only where it sees no other one, as in Reformer."""

    def __init__(self, size: int, first: float = -5e4) -> None:
        super().__init__()
        self.project = nn.Linear(size, 2 * size)
        self.first = first

    def forward(self, hidden: Tensor) -> Tensor:
        length = hidden.shape[1]
        query, value = self.project(hidden).chunk(2, -1)
        scores = query @ query.tanh().mT + self.first * torch.eye(length)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        return scores.masked_fill(later, -math.inf).softmax(-1) @ value


def test_a_token_may_see_itself_only_where_it_sees_nothing_else() -> None:
    report = checked(AloneOrAmongOthers, "outputs_depend_on_their_token", causal=True)
    assert report.ok, str(report)
