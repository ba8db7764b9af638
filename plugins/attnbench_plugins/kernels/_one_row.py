"""Attention whose weights do not depend on the query: O(S) work instead of O(L·S)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnbench_plugins.kernels._fused import fused_attention

__all__ = ["attend_one_row"]


def attend_one_row(
    scores: Tensor, query: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
) -> Tensor:
    """Softmax over the keys' scores, times the values, the same for every query.

    If the mask differs between queries, the weights do too; this is then computed as fused
    attention over keys with one feature.

    Args:
        scores: ``(..., S)``, one for each key.
        query: ``(..., L, Eq)``, any values; its gradient is exactly 0.
        value: ``(..., S, Ev)``, in the dtype of ``scores``.
        mask: boolean or floating, broadcasts to ``(..., L, S)``; every row has a key.
        is_causal: causal, aligned to the bottom right; only without a mask and with ``L <= S``.

    Returns:
        ``(..., L, Ev)`` in the dtype of ``query``, contiguous.
    """
    nothing = query[..., :0].sum(-1, keepdim=True).to(scores.dtype)
    if is_causal or (mask is not None and mask.shape[-2] > 1):
        output = fused_attention(nothing + 1, scores.unsqueeze(-1), value, mask, is_causal)
        return output.to(query.dtype)
    row = scores.unsqueeze(-2)
    if mask is not None:
        row = row.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else row + mask
    return (row.softmax(-1) @ value + nothing).to(query.dtype)
