"""What is told of a crop that cuts too much, nothing of a part, or the wrong slots."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec

Cache = dict[str, Tensor]


class Attended(nn.Module):
    """Attention to earlier tokens, and a table that the first call leaves in the cache."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(size, size), nn.Parameter(torch.randn(1, 5, size))

    def forward(self, hidden: Tensor, cache: Cache | None = None) -> Tensor:
        key, value, table = self.linear(hidden), hidden, self.table
        if cache is not None:
            if cache:
                key = torch.cat([cache["key"], key], 1)
                value, table = torch.cat([cache["value"], value], 1), cache["table"]
            cache.update(key=key, value=value, table=table.expand(len(hidden), -1, -1))
        count, total = hidden.shape[1], key.shape[1]
        hides = torch.ones(count, total, dtype=torch.bool).triu(total - count + 1)
        weights = (hidden @ key.mT).masked_fill(hides, -torch.inf).softmax(-1)
        return weights @ value + (hidden @ table.mT).softmax(-1) @ table


def cut_all(cache: Cache, length: int) -> None:
    cache.update({name: tensor[:, :length] for name, tensor in cache.items()})


def keep_last(cache: Cache, length: int) -> None:
    for name in cache.keys() - {"table"}:
        cache[name] = cache[name][:, cache[name].shape[1] - length :]


@pytest.mark.parametrize(
    ("crop", "cause", "told"),
    [
        (cut_all, "crop cuts what does not belong to the tokens", "cuts cache['table'] from"),
        (keep_last, "crop keeps other slots than the first", "leaves slots 2 to 3 of cache['key']"),
    ],
)
def test_what_a_crop_does_wrongly_is_told(crop: Any, cause: str, told: str) -> None:
    layer = LayerSpec(
        name="tried",
        make=Attended,
        accepts=("cache",),
        causal=True,
        dtypes=("float64",),
        cache=CacheSpec(new=lambda module, rows: {}, crop=crop),
    )
    names = ["cropped_slots_are_forgotten"]
    text = str(attnbench.check(layer, profile="quick", invariants=names))
    assert f"tried: {cause}" in text
    assert told in text
