"""Layers with one mistake each; the right one is the twin that ``RIGHT_LAYERS`` names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench import LayerSpec
from tests.meta.right.layers import RIGHT_LAYERS, WINDOW, Block, Growing, Ring, Static

__all__ = ["BROKEN", "KILLERS", "with_cache", "with_make"]


def with_cache(twin: str, name: str, **changes: Any) -> LayerSpec:
    """The twin with another cache."""
    spec = RIGHT_LAYERS[twin]
    assert spec.cache is not None
    return replace(spec, name=name, cache=replace(spec.cache, **changes))


def with_make(twin: str, name: str, kind: type[Block], **options: Any) -> LayerSpec:
    """The twin with another module."""
    spec = RIGHT_LAYERS[twin]
    given = {"causal": spec.causal, "window": spec.window, **options}
    return replace(spec, name=name, make=lambda size: kind(size, **given))


class PositionsRestart(Block):
    """Positions of a call with a cache begin at zero again."""

    def rotated(self, tensor: Tensor, own: Tensor) -> Tensor:
        return super().rotated(tensor, own - own[:1])


class KeysOnly(Growing):
    """Values stay where they are when rows are selected."""

    def select(self, index: Tensor) -> None:
        values = self.values
        super().select(index)
        self.values = [None if v is None else v[: len(index)] for v in values]
        if len(index) > len(values[0] if values[0] is not None else index):
            self.values = [None if v is None else v[torch.zeros_like(index)] for v in values]


class CounterOnly(Growing):
    """A crop moves the counter, and leaves the keys and values."""

    def crop(self, length: int) -> None:
        self.length = length

    def positions(self, new: int) -> Tensor:
        kept = self.keys[0].shape[2] if self.keys[0] is not None else 0
        return torch.arange(kept + new) - (kept - self.length)


class KeepsTheBuffer(Static):
    """A copy of the cache writes to the buffers of the first one."""

    def __deepcopy__(self, memo: dict[int, Any]) -> KeepsTheBuffer:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other


class RollsEarly(Ring):
    """The ring drops a token when it is just full."""

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = super().append(layer, key, value)
        if self.length + key.shape[2] == WINDOW:
            blank = torch.zeros_like(keys[:, :, :2])
            self.keys[layer] = torch.cat([blank, keys[:, :, -WINDOW + 2 :]], 2)
        return keys, values


class CropsAnyway(Ring):
    """A ring that has wrapped is cropped all the same."""

    def crop(self, length: int) -> None:
        if self.length > WINDOW:
            gone = self.length - length
            self.keys = [None if k is None else k.roll(gone, 2) for k in self.keys]
            self.values = [None if v is None else v.roll(gone, 2) for v in self.values]
            self.length = length
        else:
            super().crop(length)


class RefusesTooLate(Growing):
    """A crop is refused after half of it has been done."""

    def crop(self, length: int) -> None:
        if self.length > 5:
            self.keys = [None if k is None else k.roll(1, 2) for k in self.keys]
            raise NotImplementedError("not beyond 5 slots")
        super().crop(length)


class LastCacheStays(Block):
    """A call without a cache goes on with the one of the last call."""

    last: Growing | None = None

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        if cache is None and self.last is not None and self.last.length < 40:
            kept = self.last
            if kept.keys[0] is not None and kept.keys[0].shape[0] == hidden.shape[0]:
                return super().forward(hidden, padding_mask, kept)
        object.__setattr__(self, "last", cache)
        return super().forward(hidden, padding_mask, cache)


class MaskInPrefillOnly(Block):
    """The padding mask is forgotten once there is a past."""

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        if cache is not None and cache.length:
            padding_mask = None
        return super().forward(hidden, padding_mask, cache)


def _growing(kind: type[Growing]) -> Any:
    return lambda module, batch_size: kind(len(module.norms))


def _static(kind: type[Static]) -> Any:
    def new(module: Block, batch_size: int) -> Static:
        like = module.norms[0].weight
        return kind(len(module.norms), batch_size, module.groups, module.width, like)

    return new


def _selects_both_ways(cache: Growing, index: Tensor) -> Growing:
    """Changes the caller's cache and returns another, selected once more."""
    cache.select(index)
    other = Growing(len(cache.keys))
    other.__dict__.update(cache.__dict__)
    other.keys = [None if k is None else k.flip(0) for k in cache.keys]
    return other


_PAIRS = (
    (
        with_make("rotary_growing", "positions_restart", PositionsRestart, positions="rotary"),
        "calls_may_be_cut_anywhere",
    ),
    (with_cache("ring", "rolls_early", new=_growing(RollsEarly)), "calls_may_be_cut_anywhere"),
    (
        with_cache("causal_growing", "keys_only", new=_growing(KeysOnly)),
        "selected_rows_go_on_as_their_sequences",
    ),
    (
        with_cache("causal_growing", "selects_both_ways", select=_selects_both_ways),
        "selected_rows_go_on_as_their_sequences",
    ),
    (
        with_cache("causal_growing", "counter_only", new=_growing(CounterOnly)),
        "cropped_slots_are_forgotten",
    ),
    (with_cache("ring", "crops_anyway", new=_growing(CropsAnyway)), "cropped_slots_are_forgotten"),
    (
        with_cache("causal_growing", "refuses_too_late", new=_growing(RefusesTooLate)),
        "cropped_slots_are_forgotten",
    ),
    (
        with_cache("causal_static", "keeps_the_buffer", new=_static(KeepsTheBuffer)),
        "caches_are_independent",
    ),
    (
        with_make("causal_growing", "last_cache_stays", LastCacheStays),
        "calls_without_cache_leave_none",
    ),
    (
        with_cache("causal_growing", "length_of_the_last_call", length=lambda cache: 3),
        "cache_length_counts_slots",
    ),
)
BROKEN = {spec.name: spec for spec, _ in _PAIRS}
KILLERS = {spec.name: killer for spec, killer in _PAIRS}
