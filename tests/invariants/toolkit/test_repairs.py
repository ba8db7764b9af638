"""What is told of a layer that is right with a small change of what it computes with."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import LayerSpec
from attnbench.invariants.toolkit.layer_calls import LayerCase
from attnbench.invariants.toolkit.repairs import in_words, repair
from attnbench.registry.address import Address
from attnbench.subject.layer import LayerSubject


def numbers(count: int) -> Tensor:
    return torch.arange(count)


class Rotary(nn.Module):
    """Two heads with rotary positions, of a fused projection."""

    def __init__(self, size: int, mistake: str = "") -> None:
        super().__init__()
        self.qkv, self.mistake = nn.Linear(size, 3 * size), mistake
        turned = size // 4 * (2 if mistake == "rates" else 1)
        self.rates: Tensor
        rates = 0.1 ** (torch.arange(size // 8 * 1.0) / turned)
        if mistake == "later":
            rates = rates / rates[1]
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        mixed = self.qkv(hidden).unflatten(
            -1, (2, 3, -1) if self.mistake == "heads" else (3, 2, -1)
        )
        parts = mixed.unbind(-2 if self.mistake == "heads" else -3)
        query, key, value = (part.transpose(1, 2) for part in parts)
        places = numbers(hidden.shape[1]) + (self.mistake == "places")
        query = self.turn(query, places)
        key = self.turn(key, numbers(hidden.shape[1]))
        scale = query.shape[-1] ** -0.5 * (2 if self.mistake == "scale" else 1)
        scores = query @ key.mT * scale
        return (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)

    def turn(self, tensor: Tensor, places: Tensor) -> Tensor:
        angles = places[:, None].to(tensor) * self.rates.to(tensor)
        one, two, rest = tensor.tensor_split([len(self.rates), 2 * len(self.rates)], -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([one * cos - two * sin, one * sin + two * cos, rest], -1)


def spec(mistake: str, same_as: str | None = None) -> LayerSpec:
    return LayerSpec(
        name="rotary",
        make=lambda size: Rotary(size, mistake),
        sizes=lambda size: max(16, size // 16 * 16),
        dtypes=("float64", "float32"),
        same_as=same_as,
    )


RIGHT = spec("")


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("", ""),
        ("rates", "right if rates falls twice as fast, as over half as many features"),
        (
            "places",
            r"if result 1 of 2 of arange at \S+:\d+: return torch\.arange\(count\) is one",
        ),
        ("later", "right if rates starts at its second number"),
        ("scale", "is divided by 2"),
        ("heads", "features that qkv gives as 2 groups of 3 parts instead of 3 groups of 2 parts"),
    ],
)
def test_what_makes_a_layer_right_is_told(mistake: str, told: str) -> None:
    declared = spec(mistake, f"{__file__}:RIGHT")
    names = ["agrees_with_same_as"]
    (found,) = attnbench.check(declared, profile="quick", invariants=names).outcomes
    assert found.status == ("failed" if mistake else "passed")
    assert re.search(told, found.reason)


class Paths(nn.Module):
    """Scores of a latent, by keys or by queries that take up their projection."""

    def __init__(self, size: int, mistake: str) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(size, 6), nn.Linear(size, 6, bias=False)
        self.value, self.mistake = nn.Linear(size, size), mistake

    def forward(self, hidden: Tensor) -> Tensor:
        scores = self.query(hidden) @ self.key(hidden).mT * 6**-0.5
        return scores.softmax(-1) @ self.value(hidden)

    def absorbed(self, hidden: Tensor) -> Tensor:
        weight = self.key.weight
        if self.mistake == "order":
            weight = weight.unflatten(0, (2, 3)).transpose(0, 1).flatten(0, 1)
        query = self.query(hidden) @ weight
        scores = query @ hidden.mT * (8 if self.mistake == "scale" else 6) ** -0.5
        return scores.softmax(-1) @ self.value(hidden)


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("scale", "is multiplied by 1.155 (the root of 4/3)"),
        ("order", "with the features that query gives as 3 groups of 2 parts instead of 2 groups"),
        ("", ""),
    ],
)
def test_what_makes_two_methods_agree_is_told(mistake: str, told: str) -> None:
    law = "absorbed_equals_expanded"
    declared = LayerSpec(
        name="paths",
        make=lambda size: Paths(size, mistake),
        laws=frozenset({law}),
        paths={law: ("forward", "absorbed")},
        dtypes=("float64", "float32"),
    )
    (found,) = attnbench.check(declared, profile="quick", invariants=[law]).outcomes
    assert found.status == ("failed" if mistake else "passed")
    assert told in found.reason


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (0.5, "0.5"),
        (2 / 3, "0.6667 (2/3)"),
        (3**0.5, "1.732 (the root of 3)"),
        (1e-4, "0.0001"),
        (1 / 4096, "0.0002441"),
        (1e5**0.5, "316.2"),
    ],
)
def test_a_factor_is_a_fraction_or_a_root_of_small_numbers_alone(factor: float, words: str) -> None:
    assert in_words(factor) == words


class Banded(nn.Module):
    """Tokens see three others, with a bias by distance; one operation may be done otherwise."""

    def __init__(self, size: int, mistake: str) -> None:
        super().__init__()
        self.qkv, self.mistake = nn.Linear(size, 3 * size), mistake
        self.bias = nn.Parameter(torch.randn(64))

    def forward(self, hidden: Tensor) -> Tensor:
        count, mistake = hidden.shape[1], self.mistake
        query, key, value = self.qkv(hidden).chunk(3, -1)
        places = numbers(count)[:, None]
        others = torch.full((1, 1), 5 * (mistake == "places")) + numbers(count)
        behind = others - places if mistake == "sign" else places - others
        scores = query @ key.mT + behind.to(hidden).exp()
        table = self.bias[1 : count + 1] if mistake == "slice" else self.bias[:count]
        scores = scores + table[behind.abs().clamp(max=count - 1)]
        far = behind > 3 if mistake == "bound" else behind >= 3
        scores = scores.masked_fill(far | ~torch.ones_like(scores).tril().bool(), -1e9)
        weights = scores.softmax(1 if mistake == "axis" else -1)
        halves = (weights @ value).chunk(2, -1)
        return torch.cat([halves[1], halves[0]] if mistake == "order" else halves, -1)


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("", ""),
        ("places", '5 * (mistake == "places")) + numbers(count) is counted from 0'),
        ("sign", 'behind = others - places if mistake == "sign" else places - others is mult'),
        ("slice", "else self.bias[:count] begins one earlier"),
        ("bound", "behind >= 3 counts the bound itself (>=)"),
        ("axis", "is taken along axis -1 instead of -2"),
        ("order", "else halves, -1) has its two parts in the opposite order"),
    ],
)
def test_an_operation_that_is_done_otherwise_is_told(mistake: str, told: str) -> None:
    def subject(mistake: str) -> LayerSubject:
        spec = LayerSpec(name="banded", make=lambda size: Banded(size, mistake))
        return LayerSubject("banded", spec, Address("banded"))

    def expected(layer: LayerCase) -> Tensor:
        there = LayerCase(subject(""), layer.case)
        return there.run(layer.hidden)

    change = repair(subject(mistake), expected)[1]
    assert told in change
    assert bool(told) == bool(change)
