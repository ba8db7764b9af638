"""Folding of a vmapped dimension into that of items."""

from __future__ import annotations

from torch import Tensor

__all__ = ["fold_mapped", "unfold_mapped"]


def fold_mapped(size: int, dim: int | None, tensor: Tensor, items: int | None = None) -> Tensor:
    """Fold the vmapped dimension ``dim`` into N of ``(N, ...)``; if ``None``, expand it first."""
    whole = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    if items is not None:
        whole = whole.expand(size, items, *whole.shape[2:])
    return whole.flatten(0, 1)


def unfold_mapped(size: int, folded: Tensor) -> Tensor:
    """Undo :func:`fold_mapped`; the vmapped dimension comes first."""
    return folded.reshape(size, -1, *folded.shape[1:])
