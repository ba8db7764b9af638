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


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Output ``(..., L, Ev)``, from the part of the score that a decoder caches per key.

    If the mask differs between queries, the weights do too; this is then computed as fused
    attention over keys with one feature.
    """
    key, value = widen(key, value)
    scores: Tensor = module.project_key(key).squeeze(-1)
    for parameter in module.parameters():  # what is the same for every key has a gradient of 0
        scores = scores + parameter.flatten()[:0].sum().to(scores.dtype)
    nothing = query[..., :0].sum(-1, keepdim=True).to(scores.dtype)  # 0, in the query's graph
    if is_causal or (attn_mask is not None and attn_mask.shape[-2] > 1):
        output = fused_attention(nothing + 1, scores.unsqueeze(-1), value, attn_mask, is_causal)
        return output.to(query.dtype)
    row = scores.unsqueeze(-2)
    if attn_mask is not None:
        hides = attn_mask.dtype == torch.bool
        row = row.masked_fill(~attn_mask, -math.inf) if hides else row + attn_mask
    return (row.softmax(-1) @ value + nothing).to(query.dtype)


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
