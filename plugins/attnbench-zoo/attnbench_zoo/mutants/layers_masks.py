"""Mistakes with masks over a cache."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.layers import (
    BANDED,
    ENCODING,
    GROWING,
    MIXED,
    STATIC,
    Banded,
    Encoding,
    Layer,
    Mixed,
    StaticLayer,
)
from attnbench_zoo.twins.stores import Cache

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_growing = Group(GROWING, MUTANTS)
_static = Group(STATIC, MUTANTS)
_mixed = Group(MIXED, MUTANTS)
_banded = Group(BANDED, MUTANTS)
_encoding = Group(ENCODING, MUTANTS)


@_growing("Megatron-Bridge#5259", "vllm#47332", "flax#5591", killers=("calls_may_be_cut_anywhere",))
class QueriesCountedFromTheChunk(Layer):
    """A query's index in its chunk is compared with a key's in the whole: a step sees key 0."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        return super().reach(block, distance - own[:1], own)


@_growing("TinyLLM#17", killers=("calls_may_be_cut_anywhere",))
class NoTriangleWithACache(Layer):
    """The causal mask is applied only where there is no cache."""

    def allowed(
        self, block: int, own: Tensor, slots: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        allowed = super().allowed(block, own, slots, real, cache)
        if cache is None:
            return allowed
        everything = torch.ones_like(allowed)
        return everything if real is None else everything & self.known(real, slots)


@_growing("OpenNMT-py#2532", "C2C#19", killers=("padded_rows_decode_as_alone",))
class PaddingHiddenInTheFirstCallOnly(Layer):
    """The padding mask is used in the first call, and not in later ones."""

    def known(self, real: Tensor, slots: Tensor) -> Tensor:
        known = super().known(real, slots)
        return known if self.first else torch.ones_like(known)

    first = True

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        self.first = not past
        return super().where(past, count, real)


@_growing("C2C#19", killers=("padded_rows_decode_as_alone",))
class PaddingMaskCutToTheCall(Layer):
    """The padding mask is cut to the columns of the call, so that older slots all count."""

    def known(self, real: Tensor, slots: Tensor) -> Tensor:
        known = super().known(real, slots)
        return known | (slots < self.past)

    past = 0

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        self.past = past
        return super().where(past, count, real)


@_growing("transformers#41966", killers=("later_tokens_are_invisible",))
class NoTriangleBesidePadding(Layer):
    """A padding mask switches causality off."""

    def allowed(
        self, block: int, own: Tensor, slots: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        if real is None:
            return super().allowed(block, own, slots, real, cache)
        return self.known(real, slots).expand(-1, len(own), -1)


@_static("transformers#30400", "transformers#30437", killers=("calls_may_be_cut_anywhere",))
class EmptySlotsGetWeight(StaticLayer):
    """A step attends to the whole buffer, its empty slots among them."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        one = len(own) == 1 and distance.shape[1] > 1
        return (
            torch.ones_like(distance, dtype=torch.bool)
            if one
            else super().reach(block, distance, own)
        )


@_mixed("transformers#48510", "transformers#48482", killers=("calls_may_be_cut_anywhere",))
class MaskOfAnotherKindOfBlock(Mixed):
    """Over a cache, the mask of the block with a window serves the block without one."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        cached = distance.shape[1] != len(own)
        return super().reach(len(self.windows) - 1 if cached else block, distance, own)


@_growing("mlx-lm#1906", killers=("padded_rows_decode_as_alone",))
class NoMaskForOneToken(Layer):
    """A step of one token gets no mask at all, not that of the padding either."""

    def allowed(
        self, block: int, own: Tensor, slots: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        allowed = super().allowed(block, own, slots, real, cache)
        return torch.ones_like(allowed) if len(own) == 1 else allowed


@_growing("LLMs-from-scratch#1048", killers=("calls_may_be_cut_anywhere",))
class TriangleCutByColumns(Layer):
    """Of the triangle of all tokens the last columns are taken, where the last rows are meant."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        visible = super().reach(block, distance, own)
        past = distance.shape[1] - len(own)
        return visible if len(own) < 2 else visible.roll(past, 1)


@_growing("candle#3743", killers=("calls_may_be_cut_anywhere",))
class LaterChunksIgnoreThePast(Layer):
    """A chunk of several tokens attends to itself only, as if it were the first."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        visible = super().reach(block, distance, own)
        return visible & (distance < len(own)) if len(own) > 1 else visible


@_growing("onnxruntime#27885", killers=("left_padding_is_inert",))
class PaddingCountedFromTheLeft(Layer):
    """The mask becomes a number of real tokens, taken to be the first ones."""

    def known(self, real: Tensor, slots: Tensor) -> Tensor:
        return (slots < real.sum(1, keepdim=True))[:, None]


@_growing("transformers#46773", killers=("left_padding_is_inert",))
class PaddingHiddenInBatchesOnly(Layer):
    """The padding mask of a single item is ignored."""

    def known(self, real: Tensor, slots: Tensor) -> Tensor:
        known = super().known(real, slots)
        return torch.ones_like(known) if len(real) == 1 else known


@_banded("onnxruntime#27992", killers=("left_padding_is_inert",))
class WindowMeasuredFromTheLongestRow(Banded):
    """Padding counts double in the window, so that short rows see too little."""

    def allowed(
        self, block: int, own: Tensor, slots: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        allowed = super().allowed(block, own, slots, real, cache)
        if real is None:
            return allowed
        padded = (~real).sum(1)[:, None, None].clamp_max(2)
        return allowed & (own[:, None] - slots < 4 - padded)


@_encoding("own", killers=("padded_tokens_are_inert",))
class PaddingOnTheRightSeen(Encoding):
    """The first padded slot is seen."""

    def known(self, real: Tensor, slots: Tensor) -> Tensor:
        known = super().known(real, slots)
        return known | known.roll(1, -1)


@_encoding("own", killers=("padded_tokens_are_inert",))
class PolarityOfTheMaskTurned(Encoding):
    """True is taken for padding."""

    def known(self, real: Tensor, slots: Tensor) -> Tensor:
        return super().known(~real, slots)


@_growing("own", killers=("later_tokens_are_invisible",))
class EachTokenSeesTheNext(Layer):
    """The triangle is shifted by one, within a call."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        return super().reach(block, distance + 1, own)
