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


class Buffered(nn.Module):
    """The sum of earlier tokens, kept in a buffer up to a count, times a count of its own."""

    def forward(self, hidden: Tensor, cache: Cache | None = None) -> Tensor:
        cache = empty(self, len(hidden)) if cache is None else cache
        past, clock, count = int(cache["past"]), int(cache["clock"]), hidden.shape[1]
        cache["kept"] = cache["kept"].to(hidden).expand(len(hidden), -1, hidden.shape[-1]).clone()
        cache["kept"][:, past : past + count] = hidden
        cache["past"], cache["clock"] = cache["past"] + count, cache["clock"] + count
        sums = cache["kept"][:, : past + count].cumsum(1)[:, past:]
        return sums * torch.arange(clock + 1, clock + count + 1)[:, None]


def empty(module: nn.Module, rows: int) -> Cache:
    return {"kept": torch.zeros(rows, 64, 1), "past": torch.tensor(0), "clock": torch.tensor(0)}


def forget_clock(cache: Cache, length: int) -> None:
    cache["past"] = torch.full_like(cache["past"], length)


def test_a_crop_is_not_said_to_leave_what_is_never_read_again() -> None:
    layer = LayerSpec(
        name="tried",
        make=lambda size: Buffered(),
        accepts=("cache",),
        causal=True,
        dtypes=("float64",),
        cache=CacheSpec(new=empty, crop=forget_clock),
    )
    names = ["cropped_slots_are_forgotten"]
    text = str(attnbench.check(layer, profile="quick", invariants=names))
    assert "leaves cache['clock']" in text
    assert "leaves cache['kept']" not in text


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
