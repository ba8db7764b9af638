"""Attention over sums of a function of each pair, for any leading sizes and masks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnbench.testing import widen
from attnbench_kernels.online import runs_online
from attnbench_kernels.operators import forward

KEPT_PAIRS = 2**23
"""Up to this many weights are kept for the backward pass; more are recomputed there."""


def pairwise_attention(
    a: Tensor,
    b: Tensor,
    w: Tensor,
    value: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    *,
    squares: bool = False,
) -> Tensor:
    r"""Softmax over :math:`w^\top \tanh(a_i + b_j)`, times the values.

    With ``squares`` it is over :math:`w^\top (a_i - b_j)^2`.

    Args:
        a: ``(..., L, h)``, from the queries.
        b: ``(..., S, h)``, from the keys.
        w: ``(h,)``.
        value: ``(..., S, Ev)``.
        mask: boolean or floating, broadcasts to ``(..., L, S)``; every row has a key.
        is_causal: causal, aligned to the bottom right; only without a mask and with ``L <= S``.
        squares: use squares of differences instead of tanh of sums.

    Returns:
        ``(..., L, Ev)``, in float64 if ``a`` is, else in float32.

    Raises:
        NotImplementedError: when a second derivative is taken.
    """
    (a,) = widen(a)
    b, w, value = (t.to(a.dtype) for t in (b, w, value))  # their dtypes differ under autocast
    lead, dtype = a.shape[:-2], a.dtype
    if mask is not None:
        if mask.shape[:-2].numel() > 1:
            mask = mask.expand(*lead, *mask.shape[-2:])
        mask = mask.reshape(-1, *mask.shape[-2:])
        if mask.dtype != torch.bool:
            mask = mask.to(dtype)
    folded = [t.reshape(math.prod(lead), *t.shape[-2:]) for t in (a, b, value)]
    inputs = (*folded, w) if mask is None else (*folded, w, mask)
    pairs = math.prod((*lead, a.shape[-2], b.shape[-2]))
    keep = (
        torch.is_grad_enabled()
        and any(t.requires_grad for t in inputs)
        and not torch.compiler.is_exporting()  # sizes are not known yet
        and (pairs <= KEPT_PAIRS or runs_online(a))  # Triton's kernels keep only a sum per query
    )
    each = w.expand(math.prod(lead), -1)
    output, _ = forward(folded[0], folded[1], each, folded[2], mask, is_causal, squares, keep)
    return torch.reshape(output, (*lead, *output.shape[1:]))
