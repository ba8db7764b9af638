"""What is told of heads that read those of others in calls behind cached tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec


class Folded(nn.Module):
    """Four heads of queries, two of keys; a step repeats the latter in another order."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.width = size // 4
        self.query, self.out = nn.Linear(size, size), nn.Linear(size, size)
        self.key, self.value = nn.Linear(size, size // 2), nn.Linear(size, size // 2)

    def heads(self, tensor: Tensor) -> Tensor:
        return tensor.unflatten(-1, (-1, self.width)).transpose(1, 2)

    def forward(self, hidden: Tensor, cache: Any = None) -> Tensor:
        query = self.heads(self.query(hidden))
        key, value = self.heads(self.key(hidden)), self.heads(self.value(hidden))
        if cache is not None:
            cache["key"] = key = torch.cat([cache["key"], key], 2)
            cache["value"] = value = torch.cat([cache["value"], value], 2)
        count, total = hidden.shape[1], key.shape[2]
        is_step = count == 1 < total
        key, value = (
            t.repeat(1, 2, 1, 1) if is_step else t.repeat_interleave(2, 1) for t in (key, value)
        )
        hides = torch.ones(count, total, dtype=torch.bool).triu(total - count + 1)
        weights = (query @ key.mT).masked_fill(hides, -torch.inf).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).flatten(2))


def new(module: Any, rows: int) -> dict[str, Tensor]:
    return {n: module.out.weight.new_zeros(rows, 2, 0, module.width) for n in ("key", "value")}


def test_heads_that_have_what_others_should_are_told() -> None:
    layer = LayerSpec(
        name="folded",
        make=Folded,
        accepts=("cache",),
        causal=True,
        dtypes=("float32",),
        sizes=lambda size: max(8, size // 8 * 8),
        cache=CacheSpec(new=new),
    )
    names = ["calls_may_be_cut_anywhere"]
    (found,) = attnbench.check(layer, profile="quick", invariants=names).outcomes
    assert "heads of the query read the keys and values of other heads" in str(found.diagnosis)
    assert "is given is wrong in heads 1 and 2 of 4; with equal tokens" in found.reason
    assert "head 1 has what 2 and 3 should, 2 has what 0 and 1 should" in found.reason
