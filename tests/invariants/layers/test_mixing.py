"""The operation that a report names where tokens or items reach each other that should not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import LayerSpec


class Layer(nn.Module):
    """Causal attention that hides padding; its norm, weights or pool reach too far, or none do."""

    def __init__(self, size: int, mistake: str) -> None:
        super().__init__()
        self.qkv, self.mistake = nn.Linear(size, 3 * size), mistake

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        query, key, value = self.qkv(hidden).chunk(3, -1)
        ahead = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).triu(1)
        late = self.mistake == "beside" and padding_mask is not None
        if late or self.mistake in ("later", "padded"):
            ahead = torch.zeros_like(ahead)
        scores = (query @ key.mT).masked_fill(ahead, -1e9)
        if padding_mask is not None:
            scores = scores.masked_fill(~padding_mask[:, None], -1e9)
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        if self.mistake in ("items", "padded"):
            value = value - value.mean(int(self.mistake == "padded"), keepdim=True).tanh()
        return weights @ value


@pytest.mark.parametrize(
    ("mistake", "invariant", "line"),
    [
        ("later", "later_tokens_are_invisible", "sum at test_mixing.py:31: weights = scores"),
        ("beside", "later_tokens_are_invisible", "sum at test_mixing.py:31: weights = scores"),
        ("items", "items_are_independent", "sub at test_mixing.py:33: value"),
        ("padded", "padded_tokens_are_inert", "sub at test_mixing.py:33: value"),
    ],
)
def test_the_operation_that_mixes_is_named(mistake: str, invariant: str, line: str) -> None:
    fields: dict[str, Any] = {
        "dtypes": ("float64", "float32"),
        "causal": mistake != "padded",
        "accepts": ("padding_mask",),
    }
    spec = LayerSpec(name="layer", make=lambda size: Layer(size, mistake), **fields)
    (found,) = attnbench.check(spec, profile="quick", invariants=[invariant]).outcomes
    assert found.status == "failed"
    assert f"first in {line}" in found.reason
