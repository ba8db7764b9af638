"""Crops meet rings that are full and have wrapped."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench import CacheSpec, LayerSpec
from tests.invariant_runs import run

WINDOW, SLOTS = 4, 7


class Ring:
    """The last tokens. Once it is full, one token at a time takes the place of the oldest."""

    def __init__(self) -> None:
        self.slots, self.oldest, self.seen = torch.empty(0), 0, 0

    def ordered(self) -> Tensor:
        return self.slots.roll(-self.oldest, 1)

    def put(self, chunk: Tensor) -> Tensor:
        held = torch.cat([self.ordered(), chunk], 1) if self.seen else chunk
        if self.seen and chunk.shape[1] == 1 and self.slots.shape[1] == SLOTS:
            self.slots = self.slots.clone()
            self.slots[:, self.oldest] = chunk[:, 0]
            self.oldest = (self.oldest + 1) % SLOTS
        else:
            self.slots, self.oldest = held[:, -SLOTS:], 0
        self.seen += chunk.shape[1]
        return held

    def crop(self, length: int) -> None:
        left = max(0, self.slots.dim() > 1 and self.slots.shape[1] - (self.seen - length))
        if left < min(length, WINDOW - 1):
            raise NotImplementedError("the ring no longer holds these tokens")
        self.cut(left)
        self.oldest, self.seen = 0, length

    def cut(self, left: int) -> None:
        self.slots = self.ordered()[:, :left] if left else self.slots


class CutAtItsEnd(Ring):
    """A crop of a full ring cuts off its physical end, which need not be the newest tokens."""

    def cut(self, left: int) -> None:
        self.slots = self.slots[:, :left] if left else self.slots


class MeanOfTheLast(nn.Module):
    """Each output is the mean of the last tokens."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.out = nn.Linear(size, size)

    def forward(self, hidden: Tensor, cache: Ring | None = None) -> Tensor:
        if not hidden.shape[1]:
            return hidden
        held = (cache or Ring()).put(hidden)
        ends = range(held.shape[1] - hidden.shape[1] + 1, held.shape[1] + 1)
        means = [held[:, max(0, end - WINDOW) : end].mean(1) for end in ends]
        output: Tensor = self.out(torch.stack(means, 1))
        return output


@pytest.mark.parametrize(("ring", "status"), [(Ring, "passed"), (CutAtItsEnd, "failed")])
def test_a_ring_that_has_wrapped_is_cropped(ring: type[Ring], status: str) -> None:
    cache = CacheSpec(
        new=lambda module, rows: ring(), crop=lambda cache, length: cache.crop(length)
    )
    fields: dict[str, Any] = {"causal": True, "window": WINDOW, "accepts": ("cache",)}
    spec = LayerSpec(name="mean_of_last", make=MeanOfTheLast, cache=cache, **fields)
    found = run(spec, "cropped_slots_are_forgotten")
    assert found.status == status, found.reason
