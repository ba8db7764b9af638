"""What the judge measures candidates against, run in a cell of the same kind.

Each function comes for both layouts: ``(B, H, L, E)`` as ``sdpa`` has it, and ``(B, L, H, E)`` as
``flash`` has it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "empty_flash",
    "empty_sdpa",
    "fused_flash",
    "fused_sdpa",
    "textbook_flash",
    "textbook_sdpa",
]

fused_sdpa = torch.nn.functional.scaled_dot_product_attention


def empty_sdpa(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Tensor:
    """Answer at once with anything of the right size: what a call costs besides attention."""
    return query.new_empty(*query.shape[:-1], value.shape[-1])


def textbook_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention as it is written in textbooks."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (t.repeat_interleave(groups, -3) for t in (key, value))
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if is_causal:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0]).tril() == 0, -math.inf)
    if attn_mask is not None:
        boolean = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -math.inf) if boolean else scores + attn_mask
    return scores.softmax(-1) @ value


empty_flash = empty_sdpa


def fused_flash(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
    """Torch's fused attention in the other layout."""
    query, key, value = (t.transpose(1, 2) for t in (query, key, value))
    return fused_sdpa(query, key, value, **given).transpose(1, 2)


def textbook_flash(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
    """The textbook form in the other layout."""
    query, key, value = (t.transpose(1, 2) for t in (query, key, value))
    return textbook_sdpa(query, key, value, **given).transpose(1, 2)
