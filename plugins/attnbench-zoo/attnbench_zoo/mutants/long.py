"""Mistakes that only sequences longer than a block show, or positions that a dtype cannot tell."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attnbench_zoo.base import BLOCK, Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention
from attnbench_zoo.twins.streaming import STREAMING, Streaming

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)
_streaming = Group(STREAMING, MUTANTS)


@_streaming("own", killers=("agrees_with_float64",))
class HiddenBlockBeforeAnOpenOne(Streaming):
    """Beyond two blocks, a first block that is hidden whole makes NaN of what follows it."""

    def step(
        self, top: Tensor, total: Tensor, output: Tensor, scores: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        if scores.shape[-2] < 2 * self.block:
            return super().step(top, total, output, scores, value)
        new = self.larger(top, scores)
        raw = (scores - new).exp()
        return new, *self.add((top - new).exp(), total, output, raw, value)


@_streaming("own", killers=("agrees_with_float64",))
class RescalingBounded(Streaming):
    """What was seen before is never rescaled to less than a thousandth."""

    def add(
        self, rescale: Tensor, total: Tensor, output: Tensor, raw: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        return super().add(rescale.clamp_min(1e-3), total, output, raw, value)


@_attention("own", killers=("gradients_are_right",))
class LaterKeysDetached(Attention):
    """No gradient reaches the keys beyond the 128th."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        near, far = key[..., :128, :], key[..., 128:, :].detach()
        return super().scores(query, torch.cat([near, far], -2), scale)


class _Softmax(torch.autograd.Function):
    """Softmax whose gradient sums over the first 128 keys only."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        weights = scores.softmax(-1)
        ctx.save_for_backward(weights)
        return weights

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        wrong: Tensor = weights * (grad - (weights * grad)[..., :128].sum(-1, keepdim=True))
        return wrong


@_attention("own", killers=("gradients_are_right",))
class SoftmaxGradientOfOneBlock(Attention):
    """A hand-written backward of softmax sums over its first block of keys only."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        weights: Tensor = _Softmax.apply(hidden)  # torch's
        return weights.masked_fill(~allowed, 0.0)


@_attention("own", killers=("agrees_with_scalar_reference",))
class TransposedWhereSquare(Attention):
    """As many queries as keys, and many of them, take a path that swaps the two."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        scores = super().scores(query, key, scale)
        square = scores.shape[-1] == scores.shape[-2] > 32
        return scores.mT if square else scores


@_attention("own", killers=("agrees_with_scalar_reference",))
class OneQuerySeesTheFirstKeys(Attention):
    """A single query after many keys sees the first 128 of them only."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        far = torch.arange(scores.shape[-1], device=scores.device) >= 128
        hides = far & allowed[..., :1].any(-1, keepdim=True)
        one = scores.shape[-2] == 1
        return super().hide(scores.masked_fill(hides, -math.inf) if one else scores, allowed)


@_attention("own", killers=("masked_weights_are_zero",))
class PositionsInTheInputsDtype(Attention):
    """Causality compares positions in the dtype of the query, which holds few of them exactly."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, False)
        if is_causal:
            q_len, kv_len = query.shape[-2], key.shape[-2]
            own = torch.arange(q_len, device=query.device)[:, None] + kv_len - q_len
            allowed = allowed & (torch.arange(kv_len, device=query.device).to(query.dtype) <= own)
        return allowed, bias


@_attention("own", killers=("weights_sum_to_one",))
class LengthsInOneByte(Attention):
    """Valid lengths are kept in one byte, with a sign."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        return super().lengths(valid_lens.to(torch.int8), query, kv_len)


@_attention("own", killers=("agrees_with_scalar_reference",))
class ItemsBeyondTheGrid(Attention):
    """Items from the 513th on are not computed."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().pool(weights, value)
        if output.dim() < 3:
            return output
        count = torch.arange(output.shape[0], device=output.device)
        return output.masked_fill((count >= 512).view(-1, *[1] * (output.dim() - 1)), 0.0)


@_streaming("own", killers=("agrees_with_float64",))
class RestOfOneKeyDropped(Streaming):
    """Blocks have 48 keys, and a last one of a single key is not read."""

    block = 48

    def starts(self, kv_len: int) -> range:
        return range(0, max(1, kv_len - 1), self.block)


@_streaming("own", killers=("agrees_with_float64",))
class KeysBeyondAThousandDropped(Streaming):
    """Keys from the 1,025th on are not read."""

    def starts(self, kv_len: int) -> range:
        return range(0, min(kv_len, 1024), self.block)


@_attention("own", killers=("query_alone_equals_query_among_others",))
class LargeCallsAreSharpened(Attention):
    """A path for calls of more than 16384 scores takes another softmax."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        large = scores.shape[-2] * scores.shape[-1] > 16384
        return super().hide(scores * 1.01 if large else scores, allowed)


@_attention("own", killers=("masking_equals_deleting",))
class LastBlockCountsTwice(Attention):
    """Beyond eight blocks of keys the last one is moved back to be full, and overlaps."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        weights = super().normalise(hidden, allowed)
        rest = weights.shape[-1] % BLOCK
        if weights.shape[-1] <= 8 * BLOCK or not rest:
            return weights
        twice = torch.ones_like(weights)
        twice[..., -BLOCK:-rest] = 2.0
        weights = weights * twice
        return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)


@_streaming("own", killers=("agrees_with_float64",))
class LastOfManyWholeBlocksLost(Streaming):
    """Where whole blocks of 48 take all keys, the last of them is taken for an empty one."""

    block = 48

    def starts(self, kv_len: int) -> range:
        whole = kv_len > self.block and kv_len % self.block == 0
        return range(0, kv_len - self.block if whole else kv_len, self.block)


@_streaming("own", killers=("agrees_with_float64",))
class SingleKeyAfterBlocksLost(Streaming):
    """A key that is left alone after whole blocks of 96 is lost."""

    block = 96

    def starts(self, kv_len: int) -> range:
        alone = kv_len > self.block and kv_len % self.block == 1
        return range(0, kv_len - alone, self.block)


class _LosesABlock(torch.autograd.Function):
    """The identity, whose backward pass stops before the last of whole blocks of 40 keys."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        grad = grad.clone()
        if grad.shape[-1] > 40 and grad.shape[-1] % 40 == 0:
            grad[..., -40:] = 0.0
        return grad


@_attention("own", killers=("gradients_are_right",))
class BackwardLosesTheLastWholeBlock(Attention):
    """Where whole blocks of 40 take all keys, the backward pass leaves out the last."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        scores = _LosesABlock.apply(scores)
        return super().hide(scores, allowed)


@_attention("own", killers=("leading_sizes_fold",))
class LastWholeChunkOfItems(Attention):
    """Of items that whole chunks of 32 take, the last chunk is scaled twice."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        found = super().scores(query, key, scale)
        if query.dim() < 3 or query.shape[0] <= 32 or query.shape[0] % 32:
            return found
        return torch.cat([found[:-32], found[-32:] * scale])
