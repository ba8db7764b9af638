"""Masked softmax, dropout and the weighted sum: from scores to the output."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnbench.attention.masks import Mask
from attnbench.attention.torch_internals import is_concrete


def widen(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Convert tensors of half types to float32, and leave all others unchanged."""
    half = (torch.float16, torch.bfloat16)
    return tuple(t.float() if t.dtype in half else t for t in tensors)


def softmax_weights(scores: Tensor, mask: Mask) -> Tensor:
    """Softmax over the keys that a mask leaves; hidden keys get a weight of exactly 0.

    Args:
        scores: ``(..., L, S)``; those of hidden keys may be anything, including NaN.
        mask: the mask; its bias is added to the scores.

    Returns:
        ``(..., L, S)``, float64 or float32: half types are widened, since softmax in float16
        overflows. A row with no key left is all zeros.
    """
    (scores,) = widen(scores)
    if mask.bias is not None:
        scores = scores + mask.bias.to(scores.dtype)
    if mask.allowed is not None:
        scores = scores.masked_fill(~mask.allowed, -math.inf)
    if 0 in scores.shape:
        return scores
    # a row of -inf alone, and its gradient, would be NaN; a score may hide keys of its own, too
    empty = scores.detach().amax(-1, keepdim=True) == -math.inf
    if empty.device.type == "cpu" and is_concrete(empty) and not bool(empty.any()):
        return scores.softmax(-1)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0)


def pool(weights: Tensor, value: Tensor, *, dropout_p: float = 0.0) -> Tensor:
    """The weighted sum of the values.

    Args:
        weights: ``(..., L, S)``.
        value: ``(..., S, Ev)``; widened to the dtype of the weights.
        dropout_p: share of weights to drop; the rest are rescaled.

    Returns:
        ``(..., L, Ev)`` in the dtype of the weights.
    """
    if dropout_p > 0.0:
        weights = torch.dropout(weights, dropout_p, train=True)
    return weights @ value.to(weights.dtype)
