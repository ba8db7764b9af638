"""A dot product attended to in blocks of keys, with a running softmax, as a kernel."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attnbench import KernelSpec
from attnbench_zoo.right.attention import wide


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


STREAMING = KernelSpec(name="streaming", scoring="scaled_dot", attend=Streaming())
