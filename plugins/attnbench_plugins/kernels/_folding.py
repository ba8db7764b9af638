"""Any leading sizes as two, and masks to go with them."""

from __future__ import annotations

import math

from torch import Tensor

__all__ = ["fold", "fold_mask"]


def fold(tensor: Tensor) -> Tensor:
    """``(..., L, E)`` as ``(B, H, L, E)``: H is the last leading size, B all others."""
    lead = tensor.shape[:-2]
    heads = lead[-1] if lead else 1
    return tensor.reshape(math.prod(lead[:-1]), heads, *tensor.shape[-2:])


def fold_mask(mask: Tensor, lead: tuple[int, ...]) -> Tensor:
    """A mask that broadcasts to ``(*lead, L, S)`` as one that broadcasts to ``(B, H, L, S)``.

    It is expanded over leading sizes only, and only where there are three or more.
    """
    full = mask.reshape(*[1] * (len(lead) + 2 - mask.dim()), *mask.shape)
    if len(lead) > 2 and any(size > 1 for size in full.shape[: len(lead) - 1]):
        full = full.expand(*lead[:-1], *full.shape[-3:])
    return fold(full)
