"""Folding of any leading sizes into two, of masks likewise, and of a vmapped dimension."""

from __future__ import annotations

import math

from torch import Tensor

__all__ = ["fold", "fold_mapped", "fold_mask", "unfold_mapped"]


def fold(tensor: Tensor) -> Tensor:
    """Reshape ``(..., L, E)`` to ``(B, H, L, E)``: H is the last leading size, B all others."""
    lead = tensor.shape[:-2]
    heads = lead[-1] if lead else 1
    return tensor.reshape(math.prod(lead[:-1]), heads, *tensor.shape[-2:])


def fold_mask(mask: Tensor, lead: tuple[int, ...]) -> Tensor:
    """Reshape a mask that broadcasts to ``(*lead, L, S)`` to broadcast to ``(B, H, L, S)``.

    It is expanded over leading sizes only, and only if there are three or more.
    """
    full = mask.reshape(*[1] * (len(lead) + 2 - mask.dim()), *mask.shape)
    if len(lead) > 2 and any(size > 1 for size in full.shape[: len(lead) - 1]):
        full = full.expand(*lead[:-1], *full.shape[-3:])
    return fold(full)


def fold_mapped(size: int, dim: int | None, tensor: Tensor, items: int | None = None) -> Tensor:
    """Fold the vmapped dimension ``dim`` into N of ``(N, ...)``; if ``None``, expand it first."""
    whole = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    if items is not None:
        whole = whole.expand(size, items, *whole.shape[2:])
    return whole.flatten(0, 1)


def unfold_mapped(size: int, folded: Tensor) -> Tensor:
    """Undo :func:`fold_mapped`; the vmapped dimension comes first."""
    return folded.reshape(size, -1, *folded.shape[1:])
