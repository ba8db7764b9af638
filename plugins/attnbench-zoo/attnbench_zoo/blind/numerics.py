"""Overflow, rounding, blocks of keys, soft caps, dropout, scales and storage."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.mutants.storage import STORED, Stored
from attnbench_zoo.twins.attention import ATTENTION, Attention
from attnbench_zoo.twins.options import OPTIONS, Options
from attnbench_zoo.twins.streaming import STREAMING, Streaming

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)
_options = Group(OPTIONS, MUTANTS)
_streaming = Group(STREAMING, MUTANTS)
_stored = Group(STORED, MUTANTS)


@_streaming("HabanaAI/vllm-fork#275")
class TenForTheMaximum(Streaming):
    """10 is subtracted from the scores instead of the largest one, so that exp overflows."""

    def larger(self, top: Tensor, scores: Tensor) -> Tensor:
        return torch.full_like(top, 10.0)


@_streaming("flashinfer-ai/flashinfer#4267")
class MaximumFromAFiniteNumber(Streaming):
    """The largest score begins at -50000, so that a row whose scores are all lower is zeros."""

    def larger(self, top: Tensor, scores: Tensor) -> Tensor:
        return super().larger(top, scores).clamp_min(-5e4)

    def finish(self, output: Tensor, total: Tensor) -> Tensor:
        return super().finish(output, total.masked_fill(total == 0, 1.0))


@_streaming("flashinfer-ai/flashinfer#5090")
class RestOfTheLastBlockCounts(Streaming):
    """The last block is filled up with keys of zeros, which get weight."""

    def step(
        self, top: Tensor, total: Tensor, output: Tensor, scores: Tensor, value: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        rest = self.block - scores.shape[-1]
        scores = torch.nn.functional.pad(scores, (0, rest))
        return super().step(
            top, total, output, scores, torch.nn.functional.pad(value, (0, 0, 0, rest))
        )


@_streaming("jax-ml/jax#24491")
class AsManyKeysAsQueries(Streaming):
    """Of the keys as many are read as there are queries."""

    def mask(self, query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        beyond = torch.arange(key.shape[-2], device=key.device) >= query.shape[-2]
        return super().mask(query, key, attn_mask, is_causal).masked_fill(beyond, -math.inf)


@_streaming("openai/gpt-oss#196")
class FirstKeysSkippedBehindAPrefix(Streaming):
    """With causality the keys are read from the position of the first query on."""

    def mask(self, query: Tensor, key: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        mask, first = (
            super().mask(query, key, attn_mask, is_causal),
            key.shape[-2] - query.shape[-2],
        )
        skipped = torch.arange(key.shape[-2], device=key.device) < first
        return mask.masked_fill(skipped, -math.inf) if is_causal else mask


@_streaming("sgl-project/sglang#40903")
class PrefixMergedInTheWrongBase(Streaming):
    """A prefix and the rest are merged by log-sums of base 2 as if they were natural."""

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        prefix = key.shape[-2] - query.shape[-2]
        if prefix <= 0:
            return super().__call__(module, query, key, value, attn_mask, is_causal)
        mask = self.mask(query, key, attn_mask, is_causal)
        outputs, sums = [], []
        for part in (slice(prefix), slice(prefix, None)):
            scores = self.scores(query, key[..., part, :]) + mask[..., part]
            empty = scores.isneginf().all(-1, keepdim=True)
            safe = scores.masked_fill(empty, 0.0)
            outputs.append(safe.softmax(-1) @ value[..., part, :].to(safe.dtype))
            natural = safe.logsumexp(-1, keepdim=True).masked_fill(empty, -math.inf)
            sums.append(natural / math.log(2))
        merged = (torch.stack(sums).softmax(0) * torch.stack(outputs)).sum(0)
        return merged.to(query.dtype)


@_options("kekzl/imp#688")
class CapLeftOutInFloat32(Options):
    """The path that keeps scores in float32 has no soft cap."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        if query.dtype == torch.float32:
            return Attention.scores(self, query, key, scale)
        return super().scores(query, key, scale)


@_options("flashinfer-ai/flashinfer#350")
class HiddenScoresAreCapped(Options):
    """The soft cap comes after the mask: what is hidden has the score -cap, and weight."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return Attention.scores(self, query, key, scale)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        cap = self.given[1]
        if cap is None:
            return super().normalise(hidden, allowed)
        seen = allowed.any(-1, keepdim=True).expand_as(allowed)
        return super().normalise(self.cap(hidden, cap), seen)


@_attention("pytorch/pytorch#187506")
class InnermostStrideTakenForOne(Attention):
    """Features are read one beside the other, whatever the stride between them."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *masks: Any, **given: Any) -> Any:
        tensors = (self.read(tensor) for tensor in (query, key, value))
        return super().forward(*tensors, *masks, **given)

    def read(self, tensor: Tensor) -> Tensor:
        """The tensor, with a last stride of 1."""
        return tensor.as_strided(tensor.shape, (*tensor.stride()[:-1], 1))


@_attention("NVIDIA/Megatron-LM#411")
class DropoutGoneAfterAnEvaluation(Attention):
    """A call in evaluation sets the dropout of all later calls to 0."""

    kept = True

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        self.kept = self.kept and self.training
        return super().drop(weights, dropout_p if self.kept else 0.0)


@_stored("flashinfer-ai/flashinfer#4979")
class ScalesIgnored(Stored):
    """The scales of stored keys and values are taken, and not applied."""

    def restore(self, stored: Tensor, scale: Tensor | None) -> Tensor:
        return stored


@_stored("Dao-AILab/flash-attention#978")
class LogSumOfEmptyRowsIsPositive(Stored):
    """The log-sum of a row without keys is +inf."""

    def log_sums(self, scores: Tensor, weights: Tensor) -> Tensor:
        sums = super().log_sums(scores, weights)
        return sums.masked_fill(sums.isneginf(), torch.inf)
