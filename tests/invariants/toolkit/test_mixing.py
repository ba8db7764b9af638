"""The operation that a report names where tokens or items reach each other that should not."""

from __future__ import annotations

import re
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
        ("later", "later_tokens_are_invisible", r"sum at \S+:\d+: weights = scores"),
        ("beside", "later_tokens_are_invisible", r"sum at \S+:\d+: weights = scores"),
        ("items", "items_are_independent", r"mean at \S+:\d+: value"),
        ("padded", "padded_tokens_are_inert", r"mean at \S+:\d+: value"),
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
    others = {"items": "other items", "padded": "padded tokens"}.get(mistake, "later tokens")
    told = f"the first operation by which {others} reach the outputs is {line}"
    assert re.search(told, found.reason)


class Other(nn.Module):
    """A causal layer whose line that mixes is not the first in which something differs."""

    def __init__(self, size: int, mistake: str) -> None:
        super().__init__()
        self.qkv, self.mistake = nn.Linear(size, 3 * size), mistake
        self.short = nn.Conv1d(3 * size, 3 * size, 3, padding=2, groups=3 * size)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        mixed = self.qkv(hidden)
        if self.mistake == "slice":
            mixed = self.short(mixed.mT)[..., -length:].mT
        if self.mistake == "view":
            mixed = mixed.view(length, batch, -1).transpose(0, 1)
        query, key, value = mixed.chunk(3, -1)
        ahead = torch.ones(length, length, dtype=torch.bool).triu(1 + (self.mistake == "next"))
        scores = query @ key.mT
        scores = (scores - scores.amax((-1, -2), keepdim=True)).masked_fill(ahead, -torch.inf)
        weights = scores.softmax(-1)
        if self.mistake == "late":
            value = value + 0.1 * value.flip(1)
        if self.mistake == "long" and length == 11:
            value = value + value.roll(-1, 1)
        if self.mistake == "long" and length != 11:
            weights = weights + 0.1
        return weights @ value


@pytest.mark.parametrize(
    ("mistake", "invariant", "line"),
    [
        (
            "slice",
            "later_tokens_are_invisible",
            r"is at \S+:\d+: mixed = self\.short\(mixed\.mT\)\[\.\.\., \-length:\]\.mT",
        ),
        (
            "view",
            "items_are_independent",
            r"is view at \S+:\d+: mixed = mixed\.view\(",
        ),
        (
            "next",
            "later_tokens_are_invisible",
            r"only 4 changes\n  the first operation by which later tokens reach .* is softmax",
        ),
        # the largest of all scores counts for nothing behind a softmax
        (
            "late",
            "later_tokens_are_invisible",
            r"is flip at \S+:\d+: value = value \+ 0\.1 \* value\.flip\(1\)",
        ),
    ],
)
def test_the_operation_is_the_first_that_matters(mistake: str, invariant: str, line: str) -> None:
    assert re.search(line, _told(mistake, invariant))


def test_no_operation_is_named_that_calls_of_another_length_do_not_show() -> None:
    assert "first" not in _told("long", "later_tokens_are_invisible")


def _told(mistake: str, invariant: str) -> str:
    spec = LayerSpec(
        name="layer",
        make=lambda size: Other(size, mistake),
        dtypes=("float64",),
        causal=True,
    )
    (found,) = attnbench.check(spec, profile="quick", invariants=[invariant]).outcomes
    assert found.status == "failed"
    return found.reason


class Pooled(nn.Module):
    """The mean of real tokens is added to each; it is divided by the number of all."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.out = nn.Linear(size, size)

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        real = torch.ones_like(hidden[..., 0]) if padding_mask is None else padding_mask
        total = (hidden * real[..., None]).sum(1, keepdim=True)
        mean = total / hidden.new_full((1, 1, 1), hidden.shape[1])
        return self.out(hidden + mean)


def test_the_operation_that_counts_padding_is_named() -> None:
    fields: dict[str, Any] = {"dtypes": ("float64",), "accepts": ("padding_mask",)}
    spec = LayerSpec(name="pooled", make=Pooled, **fields)
    names = ["padded_item_equals_item_alone"]
    (found,) = attnbench.check(spec, profile="quick", invariants=names).outcomes
    assert re.search(r"is new_full at \S+:\d+: mean = total / hidden\.new_full", found.reason)


class Remembering(nn.Module):
    """Attention to memories in front of the tokens; its mask may take these to be behind them."""

    def __init__(self, size: int, *, is_right: bool) -> None:
        super().__init__()
        self.qkv, self.is_right = nn.Linear(size, 3 * size), is_right
        self.memories = nn.Parameter(torch.randn(2, size))

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        both = torch.cat([self.memories.expand(len(hidden), -1, -1), hidden], 1)
        query, key, value = self.qkv(both).chunk(3, -1)
        scores = query[:, 2:] @ key.mT
        if padding_mask is not None:
            real = padding_mask.new_ones(len(hidden), 2)
            parts = [real, padding_mask] if self.is_right else [padding_mask, real]
            scores = scores.masked_fill(~torch.cat(parts, 1)[:, None], -1e9)
        return scores.softmax(-1) @ value


@pytest.mark.parametrize("is_right", [True, False])
def test_scores_of_padding_behind_memories_are_not_what_is_named(is_right: bool) -> None:
    spec = LayerSpec(
        name="remembering",
        make=lambda size: Remembering(size, is_right=is_right),
        accepts=("padding_mask",),
        dtypes=("float64", "float32"),
    )
    names = ["padded_tokens_are_inert"]
    (found,) = attnbench.check(spec, profile="quick", invariants=names).outcomes
    assert found.status == ("passed" if is_right else "failed")
    assert is_right or "outputs is softmax at test_mixing.py" in found.reason


class Features(nn.Module):
    """Positive features from which one maximum is taken: of a batch, or of an item."""

    def __init__(self, size: int, *, of_batch: bool) -> None:
        super().__init__()
        self.out, self.of_batch = nn.Linear(size, size), of_batch

    def forward(self, hidden: Tensor) -> Tensor:
        given = self.out(hidden)
        largest = given.max() if self.of_batch else given.amax((1, 2), keepdim=True)
        return (given - largest).exp() + 0.1


def test_a_maximum_over_the_batch_is_named() -> None:
    of_batch = LayerSpec(name="features", make=lambda size: Features(size, of_batch=True))
    of_item = LayerSpec(name="features", make=lambda size: Features(size, of_batch=False))
    names = ["items_are_independent"]
    (found,) = attnbench.check(of_batch, profile="quick", invariants=names).outcomes
    assert "outputs is max at test_mixing.py:" in found.reason
    assert attnbench.check(of_item, profile="quick", invariants=names).ok
