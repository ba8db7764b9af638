"""Mistakes in kernels: a dot product attended to in blocks of keys, with a running softmax."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.streaming import STREAMING, Streaming

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_streaming = Group(STREAMING, MUTANTS)


@_streaming("own", killers=("every_attendable_key_matters",))
class LastBlockDropped(Streaming):
    """A last block that is not full is not read."""

    def starts(self, kv_len: int) -> range:
        return range(0, max(kv_len // self.block, 1) * self.block, self.block)


@_streaming("own", killers=("weights_sum_to_one",))
class OutputNotRescaled(Streaming):
    """The output is not rescaled when a larger score comes."""

    def add(
        self, rescale: Tensor, total: Tensor, output: Tensor, raw: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        return total * rescale + raw.sum(-1, keepdim=True), output + raw @ value


@_streaming("own", killers=("weights_sum_to_one",))
class SumNotRescaled(Streaming):
    """The sum is not rescaled when a larger score comes."""

    def add(
        self, rescale: Tensor, total: Tensor, output: Tensor, raw: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        return total + raw.sum(-1, keepdim=True), output * rescale + raw @ value


@_streaming("own", killers=("agrees_with_float64",))
class MaximumForgotten(Streaming):
    """Each block's largest score replaces the running one."""

    def larger(self, top: Tensor, scores: Tensor) -> Tensor:
        return scores.amax(-1, keepdim=True).detach()


@_streaming("own", killers=("masked_weights_are_zero",))
class MaskOfTheFirstBlock(Streaming):
    """Every full block gets the mask of the first."""

    def part(self, mask: Tensor, part: slice) -> Tensor:
        full = part.stop <= mask.shape[-1]
        return mask[..., : self.block] if full else mask[..., part]


@_streaming("own", killers=("agrees_with_float64",))
class FloatingMaskThroughHalf(Streaming):
    """A floating mask is kept in bfloat16 to save memory."""

    def mask(self, query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        mask = super().mask(query, key, attn_mask, is_causal)
        return mask.bfloat16().to(mask.dtype)


@_streaming("pytorch#103082", killers=("mask_forms_agree",))
class StreamingCausalTopLeft(Streaming):
    """The causal flag is aligned to the top left when L and S differ."""

    def mask(self, query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        if is_causal:
            ones = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=key.device)
            return super().mask(query, key, ones.tril(), False)
        return super().mask(query, key, attn_mask, False)


@_streaming("own", killers=("agrees_with_float64",))
class StreamingCausalBlockSkipped(Streaming):
    """Under the causal flag, blocks from the number of queries on are skipped."""

    def mask(self, query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        mask = super().mask(query, key, attn_mask, is_causal)
        if is_causal and key.shape[-2] > self.block:
            beyond = torch.arange(key.shape[-2], device=key.device) > query.shape[-2]
            return mask.masked_fill(beyond & (mask > -math.inf).any(0), -1e4)
        return mask


@_streaming("own", killers=("agrees_with_float64",))
class BlockSkippedByItsFirstQuery(Streaming):
    """Where it is causal, the first of 32 queries decides which blocks of keys all of them skip."""

    def mask(self, query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        mask = super().mask(query, key, attn_mask, is_causal)
        if not is_causal or mask.shape[-2] <= 32:
            return mask
        first = mask[torch.arange(mask.shape[-2]) // 32 * 32]
        start = torch.arange(mask.shape[-1]) // self.block * self.block
        return mask.masked_fill(first[:, start] == -math.inf, -math.inf)
