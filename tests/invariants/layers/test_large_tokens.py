"""Norms of large hidden states in float16."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import LayerSpec


class Norm(nn.Module):
    """A norm whose squares are computed in a wider type, or in the type of the tokens."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, hidden: Tensor) -> Tensor:
        wide = hidden.double() if self.kind == "wide" else hidden
        return (wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()).to(hidden)


class Block(nn.Module):
    """Attention behind a norm, or in front of one."""

    def __init__(self, size: int, kind: str) -> None:
        super().__init__()
        self.norm, self.qkv = Norm(kind), nn.Linear(size, 3 * size, bias=False)
        self.is_behind = kind != "in front"

    def forward(self, hidden: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(hidden) if self.is_behind else hidden).chunk(3, -1)
        weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        output = hidden + weights @ value
        return output if self.is_behind else self.norm(output)


class Finite(nn.Module):
    """Gives the signs of the numbers whose squares are finite."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden.sign()[hidden.pow(2).isfinite()]


class Checked(Block):
    """A block with an integer in front of its weights, and a part whose size depends on values."""

    def __init__(self, size: int, kind: str) -> None:
        nn.Module.__init__(self)
        self.count = nn.Parameter(torch.ones(1, dtype=torch.long), requires_grad=False)
        rest = Block(size, kind)
        self.finite, self.norm, self.qkv = Finite(), rest.norm, rest.qkv
        self.is_behind = True

    def forward(self, hidden: Tensor) -> Tensor:
        self.finite(hidden)
        return super().forward(hidden)


@pytest.mark.parametrize("kind", ["wide", "narrow"])
def test_integer_parameters_and_sizes_by_values_are_no_obstacle(kind: str) -> None:
    spec = LayerSpec(name="checked", make=lambda size: Checked(size, kind))
    (found,) = attnbench.check(spec, profile="quick", invariants=["half_types_agree"]).outcomes
    assert found.status == ("failed" if kind == "narrow" else "passed"), found.reason
    assert kind == "wide" or "with hidden states of about 200, output of norm" in found.reason


@pytest.mark.parametrize("kind", ["wide", "in front", "narrow"])
def test_a_norm_that_overflows_in_float16_behind_large_tokens_fails(kind: str) -> None:
    spec = LayerSpec(name="block", make=lambda size: Block(size, kind))
    (found,) = attnbench.check(spec, profile="quick", invariants=["half_types_agree"]).outcomes
    assert found.status == ("failed" if kind == "narrow" else "passed")
    if found.failure is not None:
        assert "with hidden states of about 200, output of norm" in found.reason
        assert "first infinite in pow at test_large_tokens.py:22: return" in found.reason
