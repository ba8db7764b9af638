"""What the judge measures candidates against, run in a cell of the same kind.

Each function takes ``(B, H, L, E)``, or ``(B, L, H, E)`` where the heads are ``turned``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

torch.empty(31 * 2**20, dtype=torch.uint8)  # or large temporaries are mapped anew at first


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


def product(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A matrix product, whose rate no attention exceeds."""
    return query @ key
