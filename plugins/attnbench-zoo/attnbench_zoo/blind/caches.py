"""Caches of layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import LayerSpec
from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.mutants.beside import CROSSED, Crossed
from attnbench_zoo.twins.layers import GROWING, PARTED, STATIC, Layer, PartedLayer, StaticLayer
from attnbench_zoo.twins.stores import CAPACITY, Cache, Growing, Parted, Static

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_growing = Group(GROWING, MUTANTS)
_parted = Group(PARTED, MUTANTS)
_static = Group(STATIC, MUTANTS)
_crossed = Group(CROSSED, MUTANTS)


@_static("vllm-project/vllm#43961")
class StaleTailTimesZero(StaticLayer):
    """A new cache takes over the memory of an old one, whose tail is multiplied by weights of 0."""

    class _Store(Static):
        def __init__(self, empty: Tensor) -> None:
            super().__init__(empty)
            self.keys, self.values = self.keys.fill_(torch.nan), self.values.fill_(torch.nan)

    stores = (_Store, _Store)


@_static("microsoft/onnxruntime-genai#1639")
class MaskWrittenAtTheStrideOfTheCall(StaticLayer):
    """The padding mask is copied into one as wide as the cache without the wider stride."""

    def known(self, real: Tensor, slots: Tensor) -> Tensor:
        rows, width = len(real), max(CAPACITY, real.shape[1])
        copied = nn.functional.pad(real.flatten(), (0, rows * width - real.numel()))
        return copied.reshape(rows, 1, width)[..., slots]


def _is_step(past: int, count: int) -> bool:
    return past > 0 and count == 1


@_static("microsoft/onnxruntime-genai#2354")
class StepsLeaveASlotOut(StaticLayer):
    """A step counts its token as past: it is written one slot too far, and the slot before seen."""

    class _Store(Static):
        def __init__(self, empty: Tensor) -> None:
            super().__init__(empty)
            self.keys, self.values = (
                nn.functional.pad(buffer, (0, 0, 0, 1)) for buffer in (self.keys, self.values)
            )

        def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            ahead = int(_is_step(self.length, keys.shape[2]))
            self.length += ahead
            all_keys, all_values, _ = super().append(keys, values)
            self.length -= ahead
            return all_keys, all_values, torch.arange(CAPACITY + 1)

    stores = (_Store, _Store)

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        return super().where(past, count, real) + int(_is_step(past, count))

    def allowed(
        self, block: int, own: Tensor, slots: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        if cache is not None and _is_step(cache.length, len(own)):
            own, real = (
                own + 1,
                None if real is None else nn.functional.pad(real, (0, 1), value=True),
            )
        return super().allowed(block, own, slots, real, cache)


@_growing("ml-explore/mlx-lm#1906")
class PaddingSeenBesideACache(Layer):
    """With a cache the mask of padding does not reach the attention, only the positions."""

    def allowed(
        self, block: int, own: Tensor, slots: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        return super().allowed(block, own, slots, real if cache is None else None, cache)


@_parted("huggingface/transformers#45510")
class QuantisedPartKeepsItsRows(PartedLayer):
    """A selection of rows reorders the latest tokens, and not the part that is quantised."""

    class _Store(Parted):
        def select(self, index: Tensor) -> None:
            Growing.select(self, index)

    stores = (_Store, _Store)


def _select(cache: Any, index: Tensor) -> None:
    if cache.keys is None:
        return
    same = len(index) == len(cache.keys)
    for name in ("keys", "values") if same else ("keys", "values", "cross_keys", "cross_values"):
        setattr(cache, name, getattr(cache, name)[index])


assert isinstance(CROSSED.spec, LayerSpec)
assert CROSSED.spec.cache is not None


@_crossed("facebookresearch/fairseq2#307", cache=replace(CROSSED.spec.cache, select=_select))
class SourceSelectedIfTheBatchShrinks(Crossed):
    """The kept projections of the source are selected only if the number of rows changes."""
