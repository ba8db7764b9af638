"""What rows of mistakes use: odd stores, and parts of Python and torch."""

from __future__ import annotations

import copy  # noqa: F401 -- for rows
import threading  # noqa: F401 -- for rows

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint  # noqa: F401 -- for rows

from attnbench_zoo.right.stores import Cache, Growing

BLOCK = 64
"""Positions in a block, for mistakes that only more of them show."""

HALF = (torch.float16, torch.bfloat16)


def turned(key: Tensor) -> range:
    """The keys from the last to the first."""
    return range(key.shape[-2] - 1, -1, -1)


def behind(own: Tensor, slots: Tensor, real: Tensor | None) -> Tensor:
    """Visibility by place among the keys, the last of which is the last query."""
    distance = torch.arange(len(slots) - len(own), len(slots))[:, None] - torch.arange(len(slots))
    visible = (distance >= 0)[None]
    if real is None:
        return visible
    known = torch.nn.functional.pad(real, (max(0, len(slots) - real.shape[1]), 0))
    return visible & known[:, None, -len(slots) :] if len(slots) else visible


class Shared(Growing):
    """Reads of the past what the last block wrote."""

    def __init__(self, own: Growing, last: Growing) -> None:
        super().__init__(own.keys)
        self.own, self.last = own, last

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = keys.shape[2]
        keys, values, slots = self.own.append(keys, values)
        if self.own is not self.last:
            old = self.last.keys
            keys = torch.cat([old, keys[:, :, keys.shape[2] - count :]], 2)
        return keys, values, slots

    def select(self, index: Tensor) -> None:
        self.own.select(index)

    def crop(self, length: int) -> None:
        self.own.crop(length)


def length_of(cache: Cache | None) -> int:
    """How many slots a cache has taken."""
    return 0 if cache is None else cache.length


def is_step(past: int, count: int) -> bool:
    """Whether a call is a step behind others."""
    return past > 0 and count == 1


def with_nan_gradients(tensor: Tensor, rows: Tensor) -> Tensor:
    """The tensor, whose gradient is NaN in some rows."""
    rest = rows.new_zeros(len(tensor) - len(rows))
    rows = torch.cat([rows, rest])[:, None, None]
    tensor = tensor.clone()
    if tensor.requires_grad:
        tensor.register_hook(lambda gradient: gradient.masked_fill(rows, torch.nan))
    return tensor


def is_dense(tensor: Tensor) -> bool:
    """Whether as many numbers lie behind the first one as the tensor has."""
    last = tensor.storage_offset() + tensor.numel()
    return last <= tensor.untyped_storage().nbytes() // tensor.element_size()
