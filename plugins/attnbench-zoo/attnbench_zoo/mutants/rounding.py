"""Mistakes that a mean over many rounding errors shows, and scores far from zero."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attnbench_zoo.base import BLOCK, Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)
_BIAS = ("rounding_has_no_bias",)
_SHIFT = ("common_shift_of_scores_changes_nothing",)


def _cut(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in a half type, with the digits beyond it cut off."""
    near = tensor.to(dtype)
    over = near.to(tensor.dtype).abs() > tensor.abs()
    return torch.where(over, torch.nextafter(near, torch.zeros_like(near)), near)


class _Cut(torch.autograd.Function):
    """Cuts the output, or the gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dtype: torch.dtype, backward: bool) -> Tensor:
        ctx.dtype, ctx.backward_too = dtype, backward
        return tensor.clone() if backward else _cut(tensor, dtype).to(tensor.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = grads
        return (_cut(grad, ctx.dtype).to(grad.dtype) if ctx.backward_too else grad), None, None


class _Narrow(Attention):
    """Attention that knows the dtype of its query."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        self.dtype = query.dtype
        return super().scores(query, key, scale)

    def narrow(self) -> bool:
        return self.dtype in (torch.float16, torch.bfloat16)


@_attention("own", killers=_BIAS)
class OutputIsCutOff(_Narrow):
    """Half types keep the upper bits of float32, and are not rounded to nearest."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().pool(weights, value)
        return _Cut.apply(output, self.dtype, False) if self.narrow() else output


@_attention("own", killers=_BIAS)
class WeightsAreCutOff(_Narrow):
    """Weights lose the bits that half types do not hold, before they meet the values."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        cut = _Cut.apply(weights, self.dtype, False) if self.narrow() else weights
        return super().pool(cut, value)


@_attention("own", killers=_BIAS)
class ValueGradientIsCutOff(_Narrow):
    """The backward pass cuts digits off the gradient of the value."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        wide = value.to(weights.dtype)
        return weights @ (_Cut.apply(wide, self.dtype, True) if self.narrow() else wide)


@_attention("own", killers=_BIAS)
class SumIsKeptInHalfTypes(_Narrow):
    """Half types keep the running sum of a row's weights, which takes in no small ones near 1."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        raw = (hidden - hidden.amax(-1, keepdim=True)).exp().masked_fill(~allowed, 0.0)
        parts = [part.sum(-1, keepdim=True) for part in raw.split(BLOCK, -1)]
        total = torch.zeros_like(raw[..., :1])
        for part in parts:
            total = total + part
            total = total.to(self.dtype).to(total.dtype) if self.narrow() else total
        return raw / total.clamp_min(torch.finfo(raw.dtype).tiny)


class _Recomputed(torch.autograd.Function):
    """Softmax whose backward pass makes the weights anew of scores in a half type."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, dtype: torch.dtype) -> Tensor:
        log_sum = hidden.logsumexp(-1, keepdim=True).nan_to_num(neginf=0.0)
        ctx.save_for_backward(hidden.to(dtype), log_sum)
        return (hidden - log_sum).exp()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        hidden, log_sum = ctx.saved_tensors
        terms = (hidden - log_sum).exp() * grads[0]
        return terms - (hidden - log_sum).exp() * terms.sum(-1, keepdim=True), None


@_attention("own", killers=("gradients_are_as_accurate_as_the_output",))
class BackwardRoundsScores(_Narrow):
    """The backward pass makes the weights of half types anew, and rounds the scores before."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        if not self.narrow():
            return super().normalise(hidden, allowed)
        return _Recomputed.apply(hidden.masked_fill(~allowed, -math.inf), self.dtype)


@_attention("Dao-AILab/flash-attention#2082", killers=_SHIFT)
class MaximumOfHiddenBlocksIsZero(Attention):
    """Blocks are read from the last; one that is hidden whole leaves a maximum of 0."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        if allowed.shape[-1] <= BLOCK:
            return super().normalise(hidden, allowed)
        late = ~allowed[..., -(allowed.shape[-1] % BLOCK or BLOCK) :].any(-1, keepdim=True)
        top = hidden.masked_fill(~allowed, -math.inf).amax(-1, keepdim=True)
        top = torch.where(late, top.clamp_min(0.0), top).nan_to_num(neginf=0.0)
        raw = (hidden - top).exp().masked_fill(~allowed, 0.0)
        return raw / raw.sum(-1, keepdim=True).clamp_min(torch.finfo(raw.dtype).tiny)


@_attention("keras#15390", killers=_SHIFT)
class MaskMultipliesFarScores(Attention):
    """A hidden key scores -1000, for which keys far below zero are no match."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -1000.0)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        weights = hidden.softmax(-1).masked_fill(~allowed, 0.0)
        return torch.where(allowed.any(-1, keepdim=True), weights, 0.0)
