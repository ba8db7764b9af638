"""Mistakes in kernels: a dot product attended to in blocks of keys, with a running softmax."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attnbench import KernelSpec
from tests.meta.mutants.base import Group, Mutant, Twin
from tests.meta.mutants.twins.attention import wide

__all__ = ["MUTANTS", "STREAMING", "Streaming"]

MUTANTS: list[Mutant] = []


class Streaming:
    """Scaled dot-product attention over blocks of 16 keys, rescaled as larger scores come."""

    block = 16

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Output ``(..., L, Ev)``."""
        mask = self.mask(query, key, attn_mask, is_causal)
        top = torch.full((*query.shape[:-1], 1), -math.inf, dtype=mask.dtype, device=mask.device)
        total = torch.zeros_like(top)
        output = total.expand(*query.shape[:-1], value.shape[-1])
        for start in self.starts(key.shape[-2]):
            part = slice(start, start + self.block)
            scores = self.scores(query, key[..., part, :]) + self.part(mask, part)
            top, total, output = self.step(top, total, output, scores, wide(value[..., part, :]))
        return self.finish(output, total).to(query.dtype)

    def starts(self, kv_len: int) -> range:
        """Where the blocks begin."""
        return range(0, kv_len, self.block)

    def mask(self, query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        """What is added to the scores, ``(..., L, S)``."""
        q_len, kv_len = query.shape[-2], key.shape[-2]
        zeros = torch.zeros(q_len, kv_len, dtype=wide(query).dtype, device=query.device)
        if is_causal:
            ones = torch.ones(q_len, kv_len, dtype=torch.bool, device=query.device)
            return zeros.masked_fill(~ones.tril(kv_len - q_len), -math.inf)
        if attn_mask is None:
            return zeros
        if attn_mask.dtype == torch.bool:
            return zeros.masked_fill(~attn_mask, -math.inf)
        return zeros + wide(attn_mask)

    def part(self, mask: Tensor, part: slice) -> Tensor:
        """The mask of a block."""
        return mask[..., part]

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores of a block."""
        return (wide(query) / math.sqrt(query.shape[-1])) @ wide(key).mT

    def step(
        self, top: Tensor, total: Tensor, output: Tensor, scores: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Largest score, sum and output so far, with one more block."""
        new = self.larger(top, scores)
        safe = new.masked_fill(new == -math.inf, 0.0)  # nothing seen yet: -inf less -inf is NaN
        rescale, raw = (top - safe).exp(), (scores - safe).exp()
        return new, *self.add(rescale, total, output, raw, value)

    def larger(self, top: Tensor, scores: Tensor) -> Tensor:
        """The largest score so far."""
        return torch.maximum(top, scores.amax(-1, keepdim=True)).detach()

    def add(
        self, rescale: Tensor, total: Tensor, output: Tensor, raw: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sum and output with a block added."""
        return total * rescale + raw.sum(-1, keepdim=True), output * rescale + raw @ value

    def finish(self, output: Tensor, total: Tensor) -> Tensor:
        """The output, normalised."""
        return output / total


STREAMING = Twin(
    "streaming", KernelSpec(name="streaming", scoring="scaled_dot", attend=Streaming())
)
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
