"""Kernels of scoring functions that ignore the query: one row of weights serves every query.

They do O(S) work instead of O(L·S).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

import attnbench
from attnbench.testing import widen
from attnbench_plugins.kernels.fused import fused_attention, on_known_devices

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


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Output ``(..., L, Ev)``, from the part of the score that a decoder caches per key."""
    key, value = widen(key, value)
    scores = module.project_key(key).squeeze(-1)
    for parameter in module.parameters():  # what is the same for every key has a gradient of 0
        scores = scores + parameter.flatten()[:0].sum().to(scores.dtype)
    return attend_one_row(scores, query, value, attn_mask, is_causal)


@attnbench.hookimpl
def attnbench_kernels() -> Iterable[attnbench.KernelSpec]:
    """One kernel for each scoring function that ignores the query."""
    for scoring in ("concat_linear", "self_additive", "self_tanh", "vector_sum"):
        yield attnbench.KernelSpec(
            name="one_row",
            scoring=scoring,
            attend=attend,
            supports=on_known_devices,
            priority=10,
        )
