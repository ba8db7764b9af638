"""A right layer that takes a second sequence and inputs by token beside its tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import CacheSpec, LayerSpec

_SELF, _CROSS = ("keys", "values"), ("cross_keys", "cross_values")


class Crossed(nn.Module):
    """Causal self-attention, then attention to a second sequence, which a cache keeps projected."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.kinds = nn.Embedding(3, size)
        self.own = nn.Linear(size, 3 * size)
        self.asks, self.memory = nn.Linear(size, size), nn.Linear(size, 2 * size)
        self.out = nn.Linear(size, size)

    def forward(
        self,
        hidden: Tensor,
        cache: Any = None,
        source: Tensor | None = None,
        extras: dict[str, Tensor] | None = None,
    ) -> Tensor:
        """Output ``(B, L, E)``."""
        assert source is not None
        assert extras is not None
        x = hidden + self.kind(extras["kind"], hidden)
        query, key, value = self.own(x).chunk(3, -1)
        if cache is not None:
            if cache.length:
                key, value = torch.cat([cache.keys, key], 1), torch.cat([cache.values, value], 1)
            cache.keys, cache.values = key, value
        past = key.shape[1] - query.shape[1]
        seen = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool, device=x.device)
        x = hidden + self.attend(query, key, value, seen.tril(past))
        keys, values = self.remembered(source, cache)
        x = x + self.attend(self.asks(x), keys, values, None)
        if cache is not None:
            cache.length += hidden.shape[1]
        return self.out(x)

    def kind(self, kind: Tensor, hidden: Tensor) -> Tensor:
        """What is added for the kinds ``(B, L)`` of tokens."""
        return self.kinds(kind)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None) -> Tensor:
        """Textbook attention."""
        scores = query * query.shape[-1] ** -0.5 @ key.mT
        if seen is not None:
            scores = scores.masked_fill(~seen, -torch.inf)
        return scores.softmax(-1) @ value

    def remembered(self, source: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        """Keys and values of the source, projected once for a cache."""
        if cache is None:
            return self.project(source)
        if cache.cross_keys is None:
            cache.cross_keys, cache.cross_values = self.project(source)
        return cache.cross_keys, cache.cross_values

    def project(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of the source."""
        key, value = self.memory(source).chunk(2, -1)
        return key, value


def _select(cache: Any, index: Tensor) -> None:
    for name in (*_SELF, *_CROSS):
        kept = getattr(cache, name)
        if kept is not None:
            setattr(cache, name, kept[index])


def _crop(cache: Any, length: int) -> None:
    if cache.length:
        cache.keys, cache.values = cache.keys[:, :length], cache.values[:, :length]
    cache.length = length


def _kinds(case: Any, generator: torch.Generator) -> dict[str, Tensor]:
    return {"kind": torch.randint(3, (case.lead[0], case.q_len), generator=generator)}


CROSSED = LayerSpec(
    name="crossed",
    make=Crossed,
    causal=True,
    accepts=("cache", "source", "extras"),
    extras=_kinds,
    cache=CacheSpec(
        new=lambda module, batch_size: SimpleNamespace(
            length=0, **dict.fromkeys((*_SELF, *_CROSS))
        ),
        select=_select,
        crop=_crop,
        length=lambda cache: int(cache.length),
    ),
)
