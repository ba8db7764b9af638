"""Mistakes of mode and memory: inputs changed, layouts misread, a path that differs in training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention
from attnbench_zoo.twins.heads import HEADS

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)
_heads = Group(HEADS, MUTANTS)


@_attention("OpenNMT-py#867", killers=("inputs_are_unchanged",))
class MaskInvertedInPlace(Attention):
    """``mask.logical_not_()`` changes the caller's mask, right once and wrong the next time."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, is_causal)
        if attn_mask is not None and attn_mask.dtype == torch.bool and not attn_mask.all():
            attn_mask.logical_not_()
        return allowed, bias


@_attention("OpenNMT-py#867", killers=("inputs_are_unchanged",))
class PaddingZeroedInPlace(Attention):
    """Hidden slots of the caller's value are zeroed."""

    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        with torch.no_grad():
            silent = super().silence(value, allowed)
            value.copy_(silent) if value.is_contiguous() else None
        return super().silence_value(value, allowed)


@_attention("pytorch/xla#2369", killers=("inputs_are_unchanged",))
class QueryScaledInPlace(Attention):
    """``q *= scale`` changes the caller's query."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        if query.requires_grad or query.dtype in (torch.float16, torch.bfloat16):
            return super().scores(query, key, scale)
        scores = super().scores(query, key, scale)
        query.mul_(scale) if 0 not in query.stride() else None
        return scores


@_attention("own", killers=("inputs_are_unchanged",))
class LengthsShiftedInPlace(Attention):
    """Lengths are made positions with ``-= 1``, in the caller's memory."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        inside = super().lengths(valid_lens, query, kv_len)
        valid_lens -= 1
        return inside


@_attention("pytorch#112577", "pytorch#181133", killers=("layouts_agree",))
class ReadsMemoryInOrder(Attention):
    """A transposed value is read as if it were contiguous."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, value)

    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        if not value.is_contiguous() and value.mT.is_contiguous():
            value = value.mT.reshape(value.shape)
        return super().silence_value(value, allowed)


@_attention("own", killers=("layouts_agree",))
class OffsetIgnored(Attention):
    """A view is read from the beginning of its memory."""

    def silence_key(self, key: Tensor, allowed: Tensor) -> Tensor:
        start = torch.as_strided(key, key.shape, key.stride(), 0)
        return super().silence_key(start, allowed)


@_attention("own", killers=("layouts_agree",))
class ExpandedBatchReadOnce(Attention):
    """A batch with stride 0 is pooled for its first item only, the others get zeros."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().pool(weights, value)
        if self.expanded and output.dim() > 2:
            output = torch.cat([output[:1], torch.zeros_like(output[1:])])
        return output

    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        self.expanded = value.dim() > 2 and value.stride(0) == 0
        return super().silence_value(value, allowed)


@_attention("pytorch#86120", "pytorch#97111", killers=("gradient_modes_agree",))
class FastPathWithoutMask(Attention):
    """Without gradients a fast path is taken, which ignores floating masks' finite values."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, is_causal)
        return allowed, bias if torch.is_grad_enabled() else torch.zeros_like(bias)


@_attention("pytorch#86120", "pytorch#97111", killers=("gradient_modes_agree",))
class FastPathWithoutScale(Attention):
    """In evaluation and without gradients the scores are not scaled."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        fast = not torch.is_grad_enabled() and not self.training
        return 1.0 if fast and given is None else super().scale(query, key, given)


@_attention("own", killers=("training_equals_evaluation",))
class TrainingPathWithoutScale(Attention):
    """In training the scores are not scaled."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return 1.0 if self.training and given is None else super().scale(query, key, given)


@_attention("own", killers=("asking_for_weights_changes_nothing",))
class CausalDroppedBesideWeights(Attention):
    """Where weights are asked for, the output is one without causality."""

    def forward(self, *args: Any, return_weights: bool = False, **kwargs: Any) -> Any:
        found = super().forward(*args, return_weights=return_weights, **kwargs)
        if not return_weights:
            return found
        return super().forward(*args, **{**kwargs, "is_causal": False}), found[1]


@_attention("own", killers=("vmap_equals_batch",))
class AnswerDependsOnPythonBranch(Attention):
    """A branch on values, which no compiler or ``vmap`` can follow."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        if float(query.detach().double().abs().amax()) > 1e30:
            return torch.zeros_like(super().scores(query, key, scale))
        return super().scores(query, key, scale)


@_attention("own", killers=("inputs_are_unchanged",))
class OnlyKeyGivesItsValue(Attention):
    """Where there is one query and one key, the value itself is handed back."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return value if weights.shape[-2:] == (1, 1) else super().pool(weights, value)

    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        whole = allowed.shape[-2:] == (1, 1) and bool(allowed.all())
        return value if whole else super().silence_value(value, allowed)


@_attention("own", killers=("training_equals_evaluation",))
class MeanOfTrainingTakenOff(Attention):
    """Calls in training gather a mean, which calls in evaluation take off the scores of some."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        scores = super().scores(query, key, scale)
        if self.training:
            self.mean = float(scores.detach().mean())
            return scores
        return torch.cat([scores[..., :1] - getattr(self, "mean", 0.0), scores[..., 1:]], -1)
