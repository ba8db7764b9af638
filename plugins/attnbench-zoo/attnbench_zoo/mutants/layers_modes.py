"""Mistakes of one path among several: one token, no mask, training, half types, gradients."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.layers import (
    BANDED,
    ENCODING,
    GROWING,
    LONG,
    REGISTERED,
    SINKING,
    Banded,
    Encoding,
    Layer,
    Long,
    Registered,
    Sinking,
)
from attnbench_zoo.twins.stores import Cache

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_growing = Group(GROWING, MUTANTS)
_banded = Group(BANDED, MUTANTS)
_encoding = Group(ENCODING, MUTANTS)
_registered = Group(REGISTERED, MUTANTS)
_long = Group(LONG, MUTANTS)
_sinking = Group(SINKING, MUTANTS)


@_growing("pytorch#99282", "pytorch#96941", killers=("later_tokens_are_invisible",))
class NoTriangleWithoutAMask(Layer):
    """Causality is applied only where there is a padding mask to combine it with."""

    def allowed(
        self, block: int, own: Tensor, slots: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        allowed = super().allowed(block, own, slots, real, cache)
        return torch.ones_like(allowed) if real is None and cache is None else allowed


@_growing("pytorch#186434", killers=("calls_may_be_cut_anywhere",))
class GroupsSwappedForOneToken(Layer):
    """The fast path of one token reads the grouped heads the other way round."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        if query.shape[2] == 1 and key.shape[2] > 1:
            key, value = key.repeat(1, 2, 1, 1), value.repeat(1, 2, 1, 1)
        return super().attend(query, key, value, allowed, bias)


@_growing("vllm-ascend#5583", "vllm#34871", killers=("calls_may_be_cut_anywhere",))
class OneTokenTakenForAStep(Layer):
    """A call of one token is taken for a step of decoding, which ends the prompt before it."""

    def where(self, past: int, count: int, real: Tensor | None) -> Tensor:
        where = super().where(past, count, real)
        return where + 1 if count == 1 else where


@_growing("vllm-ascend#5583", killers=("calls_may_be_cut_anywhere",))
class FirstTokenAloneSeesNothing(Layer):
    """A prompt of one token is taken for a step whose past is empty, and attends to nothing."""

    def reach(self, block: int, distance: Tensor, own: Tensor) -> Tensor:
        visible = super().reach(block, distance, own)
        return visible & (len(own) > 1 or distance.shape[1] > 1)


@_sinking("modular#6591", killers=("calls_may_be_cut_anywhere",))
class SinkDroppedInChunks(Sinking):
    """The generic path, of more than one query and some past, drops the sink."""

    def sink(self, scores: Tensor) -> Tensor:
        rows, columns = scores.shape[-2:]
        sink = super().sink(scores)
        return sink - 1e4 if 1 < rows < columns else sink


@_sinking("vllm-metal#550", killers=("calls_may_be_cut_anywhere",))
class SinkOfTheWrongHead(Sinking):
    """The head of a sink is taken from the row: right for one query only."""

    def sink(self, scores: Tensor) -> Tensor:
        heads, rows = scores.shape[1:3]
        flat = torch.arange(heads * rows) % heads
        return self.sinks[flat].reshape(1, heads, rows, 1).to(scores.dtype)


@_growing("paz#415", killers=("calls_may_be_cut_anywhere",))
class CachedPathRoundsElsewhere(Layer):
    """Kept keys and values are rounded to bfloat16, whatever the layer computes in."""

    def block(
        self, block: int, hidden: Tensor, where: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        if cache is not None:
            store = cache.stores[block]
            store.keys = store.keys.bfloat16().to(hidden.dtype)
            store.values = store.values.bfloat16().to(hidden.dtype)
        return super().block(block, hidden, where, real, cache)


@_long("paz#415", killers=("half_types_agree",))
class PositionsInTheDtypeOfTheWeights(Long):
    """Positions are held in the weights' dtype, in which bfloat16 tells 257 from no neighbour."""

    def positions(self, where: Tensor) -> Tensor:
        return where.to(self.keys[0].weight.dtype).double()


@_growing("vllm#30931", "vllm#56655", killers=("layer_calls_leave_no_trace",))
class PromptsKeptWithoutTheirWeights(Layer):
    """What a prompt gave is kept by its tokens alone, and handed out whatever the weights are."""

    kept: ClassVar[dict[tuple[Any, ...], Tensor]] = {}

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        output = super().forward(hidden, padding_mask, cache)
        if cache is not None or torch.is_grad_enabled():
            return output
        mask = () if padding_mask is None else padding_mask.flatten().tolist()
        key = (hidden.dtype, hidden.shape, *hidden.flatten().tolist(), *mask)
        return self.kept.setdefault(key, output).clone()


@_growing("transformers#46572", killers=("cached_gradients_are_right_or_stopped",))
class KeysOfThePastHaveNoGraph(Layer):
    """What later calls read of the cache has a graph for the values only."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        past = key.shape[2] - query.shape[2]
        key = torch.cat([key[:, :, :past].detach(), key[:, :, past:]], 2) if past else key
        return super().attend(query, key, value, allowed, bias)


@_growing("own", killers=("gradients_are_right",))
class KeysHaveNoGraph(Layer):
    """The keys are detached, as for a cache, in the call without one, too."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        return super().attend(query, key.detach(), value, allowed, bias)


@_growing("transformers#28056", killers=("cached_gradients_are_right_or_stopped",))
class RecomputationAppendsAgain(Layer):
    """Blocks are recomputed for the backward pass, which appends their keys again."""

    def block(
        self, block: int, hidden: Tensor, where: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        if not torch.is_grad_enabled():
            return super().block(block, hidden, where, real, cache)
        result: Tensor = checkpoint(
            super().block, block, hidden, where, real, cache, use_reentrant=False
        )
        return result


@_banded("transformer-xl#118", "transformers#3580", killers=("calls_may_be_cut_anywhere",))
class QueryAndMemoryLengthSwapped(Banded):
    """The window is measured with query and memory lengths swapped."""

    def allowed(
        self, block: int, own: Tensor, slots: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        allowed = super().allowed(block, own, slots, real, cache)
        past = len(slots) - len(own)
        if 0 < past != len(own) > 0:
            allowed = allowed & (own[:, None] - slots <= max(1, len(own)))
        return allowed


@_growing("pytorch#79927", killers=("left_padding_is_inert",))
class PackedAsIfPaddedAtTheRight(Layer):
    """Without gradients, a fast path packs the batch as if its padding were at the right."""

    def known(self, real: Tensor, slots: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            return super().known(real, slots)
        return (slots < real.sum(1, keepdim=True))[:, None]


@_encoding("flashinfer#3716", killers=("padded_item_equals_item_alone",))
class LanesBehindTheEndCount(Encoding):
    """Without a causal mask, the lanes between the last key and the end of its tile count."""

    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        lanes = -scores.shape[-1] % 16
        scores = nn.functional.pad(scores, (0, lanes), value=0.0)
        allowed = nn.functional.pad(allowed, (0, lanes), value=scores.shape[-1] > 16)
        return super().weights(scores, allowed)[..., : scores.shape[-1] - lanes]


@_encoding("own", killers=("items_are_independent",))
class CentredOverTheBatch(Encoding):
    """The mean of all items' first tokens is taken from every token."""

    def forward(self, hidden: Tensor, *masks: Any, **options: Any) -> Tensor:
        return super().forward(hidden - hidden.detach()[:, :1].mean(0), *masks, **options)


@_registered("own", killers=("outputs_depend_on_their_token",))
class TheLastOutputsGo(Registered):
    """As many outputs as there are registers are dropped, from the end."""

    def without_registers(self, outputs: Tensor) -> Tensor:
        return outputs[:, : -len(self.registers)]


@_growing("transformers#42188", killers=("calls_may_be_cut_anywhere",))
class CacheTakenAndNotUsed(Layer):
    """A cache is accepted and grows, and calls look at their own tokens only."""

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        count = query.shape[2]
        first = key.shape[2] - count
        return super().attend(
            query, key[:, :, first:], value[:, :, first:], allowed[..., first:], bias
        )


@_growing("own", killers=("later_tokens_are_invisible",))
class LayerHeadsMergedByView(Layer):
    """The heads are merged without a transpose, for one token only where it shows nothing."""

    def attend(self, *args: Any) -> Tensor:
        heads = super().attend(*args)
        return heads.transpose(1, 2).reshape(heads.shape) if heads.shape[2] > 1 else heads


@_growing("own", killers=("left_padding_is_inert",))
class PaddedRowsOverflow(Layer):
    """A padded query, which sees nothing, gives NaN."""

    def weights(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -math.inf).softmax(-1)


@_growing("own", killers=("cached_calls_keep_the_contract",))
class DropoutStaysOnWithACache(Layer):
    """Dropout stays on in evaluation where there is a cache."""

    def block(
        self, block: int, hidden: Tensor, where: Tensor, real: Tensor | None, cache: Cache | None
    ) -> Tensor:
        result = super().block(block, hidden, where, real, cache)
        return nn.functional.dropout(result, 0.1, training=cache is not None)
