"""What is told of the heads of a layer that share keys and values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnbench import LayerSpec
from tests.invariant_runs import run

HEADS, GROUPS = 6, 2


class Grouped(nn.Module):
    """Heads of the query with fewer of key and value, each for neighbours or for every second."""

    def __init__(self, size: int, order: str) -> None:
        super().__init__()
        width = size // HEADS
        self.query, self.out = nn.Linear(size, size), nn.Linear(size, size)
        self.both, self.order = nn.Linear(size, 2 * GROUPS * width), order
        self.rates = nn.Parameter(torch.randn(HEADS)) if order == "with_rates" else None
        self.gate = nn.Linear(size, HEADS) if order == "gated" else None
        is_normed = order.startswith("normed")
        self.norm = nn.RMSNorm(size) if is_normed else nn.Identity()
        self.key_norm = nn.RMSNorm(GROUPS * width) if is_normed else nn.Identity()

    def forward(self, hidden: Tensor) -> Tensor:
        query = self.norm(self.query(hidden)).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        key, value = self.both(hidden).unflatten(-1, (2, GROUPS, -1)).permute(2, 0, 3, 1, 4)
        key = self.key_norm(key.transpose(1, 2).flatten(2)).unflatten(-1, (GROUPS, -1))
        key = key.transpose(1, 2)
        if self.order == "tiled":
            key, value = (t.repeat(1, HEADS // GROUPS, 1, 1) for t in (key, value))
        elif self.order in ("crossed", "normed_crossed"):
            key = key.repeat(1, HEADS // GROUPS, 1, 1)
            value = value.repeat_interleave(HEADS // GROUPS, 1)
        else:
            key, value = (t.repeat_interleave(HEADS // GROUPS, 1) for t in (key, value))
        if self.gate is not None:
            query = query * self.gate(hidden).mT[..., None]
        if self.order in ("crossed", "scaled"):
            query = query * torch.arange(1, HEADS + 1)[:, None, None]
        if self.rates is not None:
            query = query * self.rates[:, None, None]
        pooled = (query @ key.mT).softmax(-1) @ value
        output: Tensor = self.out(pooled.transpose(1, 2).flatten(2))
        return output


@pytest.mark.parametrize(
    "order",
    ["tiled", "crossed", "normed_crossed", "scaled", "in_place", "with_rates", "gated", "normed"],
)
def test_heads_that_share_with_others_than_their_neighbours_are_found(order: str) -> None:
    layer = LayerSpec(
        name="grouped",
        make=lambda size: Grouped(size, order),
        heads=HEADS,
        kv_heads=GROUPS,
        sizes=lambda size: max(1, size // HEADS) * HEADS,
        dtypes=("float64", "float32"),
    )
    wrong = order in ("tiled", "crossed", "normed_crossed")
    found = run(layer, "heads_of_a_group_are_alike")
    assert found.status == ("failed" if wrong else "passed"), found.reason
