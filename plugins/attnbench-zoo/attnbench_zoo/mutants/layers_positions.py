"""Mistakes with what a cache says of where a token is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.layers import (
    BANDED,
    GROWING,
    LEARNED,
    MIXED,
    RINGED,
    SLOPED,
    STATIC,
    UNCACHED,
    Banded,
    Layer,
    Learned,
    Mixed,
    Ringed,
    Sloped,
    StaticLayer,
)
from attnbench_zoo.twins.stores import Cache, Growing

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_growing = Group(GROWING, MUTANTS)
_learned = Group(LEARNED, MUTANTS)
_uncached = Group(UNCACHED, MUTANTS)
_sloped = Group(SLOPED, MUTANTS)
_banded = Group(BANDED, MUTANTS)
_static = Group(STATIC, MUTANTS)
_ringed = Group(RINGED, MUTANTS)
_mixed = Group(MIXED, MUTANTS)


@_learned("unsloth#3699", killers=("padded_rows_decode_as_alone",))
class StepsAtTheIndexOfTheCache(Learned):
    """A step takes the cache's length as the position of every row, padded or not."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        return super().where(past, count, None if past else real)


@_learned("C.Origami#42", killers=("items_are_independent",))
class PositionsCountTheItems(Learned):
    """The table of positions is read along the batch: every token of an item has its number."""

    def embed(self, hidden: Tensor, where: Tensor) -> Tensor:
        items = torch.arange(len(hidden))[:, None]
        return super().embed(hidden, items.expand(hidden.shape[:2]))


@_uncached("own", killers=("later_tokens_are_invisible",))
class LayerPositionsCountFromTheEnd(Learned):
    """The last token of a call is at position 0."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        where = super().where(past, count, real)
        return where[:, -1:] - where


@_uncached("own", killers=("later_tokens_are_invisible",))
class DistancesFromTheFrontOfATable(Learned):
    """A bias by distance is read from the end of as many rows of a table as there are tokens."""

    def bias(self, own: Tensor, slots: Tensor) -> Tensor | None:
        rows = len(own) - 1 - (own[:, None] - slots).clamp_min(0)
        return (97.0 * rows * rows).sin()


@_growing("lucidrains/audiolm-pytorch#265", killers=("outputs_depend_on_their_token",))
class AttentionUnused(Layer):
    """What attention gives is dropped: the residual is added to itself."""

    def block(
        self, block: int, hidden: Tensor, where: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        return hidden + 0 * super().block(block, hidden, where, real, cache)


@_growing("own", killers=("calls_may_be_cut_anywhere",))
class StepsForgetThePast(Layer):
    """The positions of a later call begin at 0 again."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        return super().where(past, count, real) - past


@_growing("own", killers=("calls_may_be_cut_anywhere",))
class ScaleFollowsTheLength(Layer):
    """Scores are multiplied by the logarithm of the number of keys in the call."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        longer = math.log(max(8, key.shape[2])) / math.log(8)
        return super().attend(query * longer, key, value, allowed, bias)


@_growing("mlx-lm#1699", killers=("calls_may_be_cut_anywhere",))
class QueriesTurnedAfterTheAppend(Layer):
    """The offset is changed in place by the append, and the queries are turned behind it."""

    def block(
        self, block: int, hidden: Tensor, where: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        if cache is not None and block == 0:
            self.moved = len(where[0])
        result = super().block(block, hidden, where, real, cache)
        self.moved = 0
        return result

    moved = 0

    def turn(self, tensor: Tensor, where: Tensor) -> Tensor:
        is_query = tensor.shape[1] == self.heads
        return super().turn(tensor, where + self.moved if is_query else where)


@_growing("flash-linear-attention#477", "mlx-lm#1384", killers=("calls_may_be_cut_anywhere",))
class LaterBlocksReadAnAdvancedLength(Layer):
    """The first block advances the length, so that the next one begins behind the new tokens."""

    def block(
        self, block: int, hidden: Tensor, where: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        late = where + hidden.shape[1] if cache is not None and block and cache.length else where
        return super().block(block, hidden, late, real, cache)


@_banded("own", killers=("half_types_agree",))
class AnglesOfSquaredPositions(Banded):
    """The angles grow with the square of the position, so that they tell where a pair stands."""

    def table(self, where: Tensor, length: int) -> tuple[Tensor, Tensor]:
        return super().table(where * where / 4, length)


@_static("own", killers=("agrees_with_same_as",))
class StepsOfHalfAPosition(StaticLayer):
    """The angles of this path grow half as fast as those of the path that it stands for."""

    def table(self, where: Tensor, length: int) -> tuple[Tensor, Tensor]:
        return super().table(where / 2, length)


@_ringed("VeloxQuant-MLX#389", killers=("calls_may_be_cut_anywhere",))
class HeldTokensTakenForSeenOnes(Ringed):
    """Past the eviction, the next position is the number of tokens that are still held."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        return super().where(min(past, 4), count, None)


@_growing("rotary-embedding-torch#11", killers=("calls_may_be_cut_anywhere",))
class AnglesKeptByLength(Layer):
    """A table of angles is kept by the number of tokens, whatever the offset."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def table(self, where: Tensor, length: int) -> tuple[Tensor, Tensor]:
        if length not in self.kept:
            self.kept[length] = super().table(where[:1], length)
        return self.kept[length]


@_learned("onnxruntime#29002", killers=("padded_item_equals_item_alone",))
class PastOfShortRowsWraps(Learned):
    """The past is the number of real tokens less that of all, without a sign: a short row wraps."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        where = super().where(past, count, real)
        if real is None or past:
            return where
        short = real.sum(1, keepdim=True) - count
        return (where + short.remainder(128)).clamp_max(127)


@_sloped(
    "keras-hub#2862", "candle#899", "x-transformers#103", killers=("calls_may_be_cut_anywhere",)
)
class SlopesNotMovedByThePast(Sloped):
    """The bias is made for the queries of the call alone."""

    def bias(self, own: Tensor, slots: Tensor) -> Tensor:
        return super().bias(own - own[:1], slots)


@_sloped("candle#899", killers=("calls_may_be_cut_anywhere",))
class SlopeVanishesInAStep(Sloped):
    """The bias is sized by the query: at one token its width of 1 broadcasts over all keys."""

    def bias(self, own: Tensor, slots: Tensor) -> Tensor:
        return super().bias(own, own if len(own) == 1 else slots)


@_growing("google-deepmind/gemma#392", killers=("calls_may_be_cut_anywhere",))
class KeptKeysTurnedAgain(Layer):
    """Keys that were kept turned are turned once more at each step."""

    def block(
        self, block: int, hidden: Tensor, where: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        if cache is not None and cache.length:
            store = cache.stores[block]
            store.keys = self.turn(store.keys, torch.arange(store.keys.shape[2])[None])
        return super().block(block, hidden, where, real, cache)


@_growing("tiny-llm#46", killers=("calls_may_be_cut_anywhere",))
class OffsetRaisedByThePromptAgain(Layer):
    """The length is advanced twice by the first call."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        again = getattr(self, "prompt", 0) if past else 0
        if not past:
            self.prompt = count
        return super().where(past, count, real) + again


@_growing("mosaicml/examples#257", killers=("padded_rows_decode_as_alone",))
class PaddingTakenFromTheNewColumns(Layer):
    """Positions are corrected for the padding among the new columns only."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        if real is None:
            return super().where(past, count, real)
        return past + (real[:, past:].cumsum(1) - 1).clamp_min(0)


@_growing("own", killers=("calls_may_be_cut_anywhere",))
class PositionsTakenModuloSixteen(Layer):
    """The positions of a later call wrap at 16, the length of a table made once."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        where = super().where(past, count, real)
        return where % 16 if past else where


@_mixed("llama.cpp#3835", killers=("calls_may_be_cut_anywhere",))
class RingPositionsShiftTwice(Mixed):
    """A full ring shifts the positions of what comes next, once more a call."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        return super().where(past, count, real) + (3 if past > 4 else 0)


@_ringed("transformers#38156", "VeloxQuant-MLX#274", killers=("cache_length_counts_slots",))
class LengthCappedAtTheWindow(Ringed):
    """The length that the cache reports is capped at what it holds."""

    class cache(Cache):  # noqa: N801 -- it takes the place of the twin's
        def advance(self, count: int) -> None:
            self.length = min(self.length + count, 4)


@_growing("transformers#4826", killers=("calls_may_be_cut_anywhere",))
class HistoryFedOnTopOfTheCache(Layer):
    """The first token of a later call is appended twice."""

    class _Twice(Growing):
        def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            if self.length and keys.shape[2] > 1:
                super().append(keys[:, :, :1], values[:, :, :1])
                self.length -= 1
            keys, values, _ = super().append(keys, values)
            return keys, values, torch.arange(keys.shape[2])

    stores = (_Twice, _Twice)
