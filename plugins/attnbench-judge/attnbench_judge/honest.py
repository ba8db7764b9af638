"""What the judge measures candidates against, run in a cell of the same kind.

Each function takes ``(B, H, L, E)``, or ``(B, L, H, E)`` where the heads are ``turned``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _in_both_layouts(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def call(*tensors: Tensor, turned: bool = False, **given: Any) -> Tensor:
        if not turned:
            return function(*tensors, **given)
        return function(*(t.transpose(1, 2) for t in tensors), **given).transpose(1, 2)

    return call


@_in_both_layouts
def empty(query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Tensor:
    """Answer at once with anything of the right size: what a call costs besides attention."""
    return query.new_empty(*query.shape[:-1], value.shape[-1])


@_in_both_layouts
def fused(query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
    """Torch's fused attention."""
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, **given)


@_in_both_layouts
def textbook(
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


def product(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A matrix product, whose rate no attention exceeds."""
    return query @ key
