"""The tensors in a cache, and which of them a selection of rows has left as they were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["left_by_selection", "tensors_of"]

_DEEPEST = 6
_NAMED = 3
"""Most tensors of a kind that are named."""


def tensors_of(cache: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a cache, with their places in it."""
    yield from _tensors(cache, "cache", set(), 0)


def _tensors(held: Any, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, Tensor]]:
    if isinstance(held, Tensor):
        yield path, held
        return
    if depth == _DEEPEST or id(held) in seen or isinstance(held, nn.Module | type):
        return
    seen.add(id(held))
    if isinstance(held, Mapping):
        parts = [(f"{path}[{name!r}]", part) for name, part in held.items()]
    elif isinstance(held, list | tuple):
        parts = [(f"{path}[{number}]", part) for number, part in enumerate(held)]
    else:
        parts = [(f"{path}.{name}", part) for name, part in getattr(held, "__dict__", {}).items()]
    for place, part in parts:
        yield from _tensors(part, place, seen, depth + 1)


def left_by_selection(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], rows: int
) -> tuple[list[str], list[str]]:
    """The tensors that a selection has changed, and those with all rows that it has not.

    Args:
        before, after: copies of the cache's tensors by place.
        rows: number of rows before.

    Returns:
        Their places and shapes in words.
    """
    changed, left = [], []
    for place, tensor in after.items():
        old = before.get(place)
        told = f"{place} {tuple(tensor.shape)}"
        if old is None or old.shape != tensor.shape or not torch.equal(old, tensor):
            changed.append(told)
        elif rows in tensor.shape:
            left.append(told)
    return changed[:_NAMED], left[:_NAMED]
