"""Mistakes with crops, copies and what is left of other sequences."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.layers import (
    GROWING,
    PARTED,
    STATIC,
    Layer,
    PartedLayer,
    StaticLayer,
)
from attnbench_zoo.twins.stores import CAPACITY, Cache, Growing, Parted, Static

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_growing = Group(GROWING, MUTANTS)
_static = Group(STATIC, MUTANTS)
_parted = Group(PARTED, MUTANTS)


@_growing("transformers#47433", killers=("cropped_slots_are_forgotten",))
class CropToNothingRemovesNothing(Layer):
    """A crop to length 0 is cut with ``[:-0]`` in mind, and does nothing."""

    class cache(Cache):  # noqa: N801 -- it takes the place of the twin's
        def crop(self, length: int) -> None:
            if length:
                super().crop(length)


@_growing("transformers#47433", killers=("cropped_slots_are_forgotten",))
class CropLeavesOneTokenMore(Layer):
    """A crop keeps one token more than it was asked to, but counts as asked."""

    class _Store(Growing):
        def crop(self, length: int) -> None:
            super().crop(length + 1)

    stores = (_Store, _Store)

    def allowed(
        self, block: int, own: Tensor, slots: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        return (
            super().allowed(block, own, slots, real, cache)
            if cache is None
            else _behind(own, slots, real)
        )


def _behind(own: Tensor, slots: Tensor, real: Tensor | None) -> Tensor:
    """Visibility by place among the keys, the last of which is the last query."""
    distance = torch.arange(len(slots) - len(own), len(slots))[:, None] - torch.arange(len(slots))
    visible = (distance >= 0)[None]
    if real is None:
        return visible
    known = torch.nn.functional.pad(real, (max(0, len(slots) - real.shape[1]), 0))
    return visible & known[:, None, -len(slots) :] if len(slots) else visible


@_growing("own", killers=("cache_operations_combine",))
class CropLosesASelection(Layer):
    """Rows are selected at the next call, and a crop before it forgets which."""

    class cache(Cache):  # noqa: N801 -- it takes the place of the twin's
        pending: Tensor | None = None

        def select(self, index: Tensor) -> None:
            self.pending = index if self.pending is None else self.pending[index]

        def settle(self) -> None:
            if self.pending is not None:
                super().select(self.pending)
            self.pending = None

        def crop(self, length: int) -> None:
            super().crop(length)
            self.pending = None

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        if cache is not None:
            cache.settle()
        return super().forward(hidden, padding_mask, cache)


@_static("vllm-mlx#385", killers=("cropped_slots_are_forgotten",))
class CropMovesTheCounterOnly(StaticLayer):
    """A crop moves the cache's counter, but not where the buffers are written."""

    class cache(Cache):  # noqa: N801 -- it takes the place of the twin's
        def crop(self, length: int) -> None:
            self.length = length


@_growing("vllm-mlx#385", killers=("cropped_slots_are_forgotten",))
class TailSeenAfterACrop(Layer):
    """What was cropped is hidden from the first call that follows, and comes back after it."""

    class _Store(Growing):
        dropped: ClassVar[Any] = None

        def crop(self, length: int) -> None:
            if length < self.length:
                self.tail = self.keys[:, :, length:], self.values[:, :, length:]
            super().crop(length)

        def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            given = super().append(keys, values)
            tail = getattr(self, "tail", None)
            if tail is not None and len(tail[0]) == len(keys) and keys.shape[2] == 1:
                self.keys = torch.cat([self.keys[:, :, :-1], tail[0][:, :, :1]], 2)
                self.values = torch.cat([self.values[:, :, :-1], tail[1][:, :, :1]], 2)
                self.tail = None
            return given

    stores = (_Store, _Store)


@_static("mlx-examples#977", killers=("caches_are_independent",))
class CopyTakenForFull(StaticLayer):
    """A copy is read as if all of its buffer were filled."""

    class _Store(Static):
        whole = False

        def __deepcopy__(self, memo: dict[int, Any]) -> Static:
            twin = copy.copy(self)
            twin.keys, twin.values, twin.whole = self.keys.clone(), self.values.clone(), True
            return twin

        def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            keys, values, slots = super().append(keys, values)
            return keys, values, torch.where(slots < self.length, slots, 0) if self.whole else slots

    stores = (_Store, _Store)


@_static("MemOS#2301", killers=("caches_are_independent",))
class CopySharesTheBuffers(StaticLayer):
    """A copy is a reference: what either appends, the other holds too."""

    class _Store(Static):
        def __deepcopy__(self, memo: dict[int, Any]) -> Static:
            return copy.copy(self)

    stores = (_Store, _Store)


@_growing("MemOS#2313", killers=("caches_are_independent",))
class CopyForgetsItsLength(Layer):
    """A copy lacks the count of what it holds, and begins again at position 0."""

    class cache(Cache):  # noqa: N801 -- it takes the place of the twin's
        def __deepcopy__(self, memo: dict[int, Any]) -> Cache:
            twin = copy.copy(self)
            twin.stores = copy.deepcopy(self.stores, memo)
            twin.length = 0
            return twin


def past(cache: Cache | None) -> int:
    return 0 if cache is None else cache.length


@_growing("own", killers=("empty_calls_are_harmless",))
class NoNewTokensTakeASlot(Layer):
    """A call with no new tokens is counted as one."""

    def forward(
        self,
        hidden: Tensor,
        padding_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        output = super().forward(hidden, padding_mask, cache)
        if cache is not None and not hidden.shape[1]:
            cache.advance(1)
        return output


@_parted("transformers#48700", "transformers#45510", killers=("cropped_slots_are_forgotten",))
class CropCutsTheTailOnly(PartedLayer):
    """A crop cuts the tail, and leaves the other part as it is."""

    class _Store(Parted):
        def crop(self, length: int) -> None:
            old = self.old_keys.shape[2]
            Growing.crop(self, max(0, length - old))
            self.length = length

        def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            keys, values, slots = super().append(keys, values)
            return keys, values, torch.arange(keys.shape[2]).clamp_max(len(slots) - 1)

    stores = (_Store, _Store)


@_growing("vllm-mlx#69", killers=("cropped_slots_are_forgotten",))
class OneBlockIsNotCropped(Layer):
    """A crop passes over a block of another kind."""

    class _Store(Growing):
        def crop(self, length: int) -> None:
            self.length = length

        def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            keys, values, slots = super().append(keys, values)
            return keys, values, torch.arange(keys.shape[2]).clamp_max(len(slots) - 1)

    stores = (Growing, _Store)


@_growing("transformers#20621", killers=("calls_may_be_cut_anywhere",))
class LongPastSwallowed(Layer):
    """A past of sixteen tokens or more is taken, and has no effect."""

    def allowed(
        self, block: int, own: Tensor, slots: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        allowed = super().allowed(block, own, slots, real, cache)
        return allowed & (slots >= own[:1]) if len(own) and own[0] >= 16 else allowed


@_growing("MoE-Infinity#195", "TrenTorch#141", killers=("calls_may_be_cut_anywhere",))
class BlocksShareOneStore(Layer):
    """The index of a block is taken, but there is one store: the last block's keys count."""

    class cache(Cache):  # noqa: N801 -- it takes the place of the twin's
        def __init__(self, stores: list[Growing]) -> None:
            super().__init__([_Shared(store, stores[-1]) for store in stores])


class _Shared(Growing):
    """Reads of the past what the last block wrote."""

    def __init__(self, own: Growing, last: Growing) -> None:
        super().__init__(own.keys)
        self.own, self.last = own, last

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = keys.shape[2]
        keys, values, slots = self.own.append(keys, values)
        if self.own is not self.last:
            old = self.last.keys
            keys = torch.cat([old, keys[:, :, keys.shape[2] - count :]], 2)
        return keys, values, slots

    def select(self, index: Tensor) -> None:
        self.own.select(index)

    def crop(self, length: int) -> None:
        self.own.crop(length)


@_static("vllm#43810", killers=("padded_rows_decode_as_alone",))
class PaddingWrittenAtSlotMinusOne(StaticLayer):
    """Padding is written at slot -1, so that the last one of the buffer is lost."""

    def allowed(
        self, block: int, own: Tensor, slots: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        allowed = super().allowed(block, own, slots, real, cache)
        lost = cache is not None and real is not None and not bool(real.all())
        return allowed & (slots != CAPACITY - 1) if lost else allowed


@_growing(
    "transformers#29114", "sglang#37975", "flashinfer#3904", killers=("calls_may_be_cut_anywhere",)
)
class PastFrozenAtTheFirstStep(Layer):
    """The past that the first step had is kept as a number, and holds for all later ones."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        if past and count == 1:
            self.frozen = getattr(self, "frozen", past)
            return super().where(past, count, real) - past + self.frozen
        return super().where(past, count, real)


@_growing("LLMs-from-scratch#1048", "lag-llama#81", killers=("calls_without_cache_leave_none",))
class CachedCallLeavesAPosition(Layer):
    """A cached call leaves its position on the module, where a call without a cache finds it."""

    pointer = 0

    def forward(
        self,
        hidden: Tensor,
        padding_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        at = past(cache)
        output = super().forward(hidden, padding_mask, cache)
        self.pointer = at
        return output

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        visible = super().reach(block, distance, own)
        if len(own) and own[0] == 0 and self.pointer:
            return visible & (distance < self.pointer)
        return visible


@_growing("own", killers=("calls_without_cache_leave_none",))
class CallWithoutACacheKeepsOne(Layer):
    """A call without a cache leaves its keys for the next one."""

    left: Tensor | None = None

    def forward(
        self,
        hidden: Tensor,
        padding_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        if cache is not None or padding_mask is not None:
            return super().forward(hidden, padding_mask, cache)
        left, self.left = self.left, hidden.detach()
        if left is None or left.shape[0] != hidden.shape[0]:
            return super().forward(hidden)
        return super().forward(torch.cat([left, hidden], 1))[:, left.shape[1] :]


@_static("own", killers=("caches_are_independent",))
class BuffersOfTheModule(StaticLayer):
    """All caches of a module share its buffers."""

    def new_cache(self, batch_size: int) -> Cache:
        cache = super().new_cache(batch_size)
        kept = self.__dict__.setdefault("kept", {})
        stores = kept.setdefault(batch_size, cache.stores)
        for own, store in zip(cache.stores, stores, strict=True):
            own.keys, own.values = store.keys, store.values
        return cache


@_growing("own", killers=("cached_calls_keep_the_contract",))
class HiddenChangedInPlace(Layer):
    """The residual is added into the hidden states that the caller gave."""

    def forward(
        self,
        hidden: Tensor,
        padding_mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        output = super().forward(hidden, padding_mask, cache)
        if cache is not None:
            hidden.detach().mul_(1.5)
        return output
