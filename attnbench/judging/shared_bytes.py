"""The memory that judge and candidate share, and what a tensor in it looks like."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnbench.errors import ShapeError

_ALIGNED = 64
_DTYPES = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "bool"),
        *("uint8", "int8", "int16", "int32", "int64"),
    )
}


def dtype_named(name: object) -> torch.dtype | None:
    """The dtype that an answer names, or ``None``."""
    return _DTYPES.get(name) if isinstance(name, str) else None


def bytes_of(tensor: Tensor) -> tuple[Tensor, int]:
    """The bytes in storage that a tensor spans, as a view, and the number of elements in them."""
    if not tensor.numel():
        return torch.empty(0, dtype=torch.uint8), 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    count = 1 + sum((size - 1) * stride for size, stride in pairs)
    width = tensor.element_size()
    flat = torch.empty(0, dtype=torch.uint8).set_(
        tensor.detach().untyped_storage(), tensor.storage_offset() * width, (count * width,), (1,)
    )
    return flat, count


class SharedBytes:
    """A piece of memory whose size neither side can change.

    The first half is for inputs; two places in the second half are for outputs in turn, so that
    an earlier answer can be read again.

    Args:
        size: bytes; pages that nobody writes take no memory.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.file = os.memfd_create("attnbench-judge", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.file, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.file, fcntl.F_ADD_SEALS, seals)
        self._map = mmap.mmap(self.file, size)
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self.room = size // 4
        self.places = (size // 2, size // 4 * 3)

    def close(self) -> None:
        """Close the file; the memory goes with its last tensor."""
        os.close(self.file)

    def laid_out(self, tensors: Sequence[Tensor]) -> list[tuple[list[Any], Tensor, Tensor]]:
        """Places for tensors, from the start: what to tell of each, its bytes, and theirs there.

        A tensor that is given twice has one place.

        Raises:
            ShapeError: they do not fit into the inputs' half.
        """
        placed, offset = [], 0
        known: dict[int, tuple[list[Any], Tensor, Tensor]] = {}
        for tensor in tensors:
            if id(tensor) in known:  # such as query and key of self-attention
                placed.append(known[id(tensor)])
                continue
            flat, count = bytes_of(tensor)
            end = offset + flat.numel()
            if end > self.places[0]:
                raise ShapeError(
                    f"the inputs of a call take {end} bytes or more, and the judge shares "
                    f"{self.places[0]}; use smaller cases."
                )
            dtype = str(tensor.dtype).removeprefix("torch.")
            told = [dtype, list(tensor.shape), list(tensor.stride()), offset, count]
            known[id(tensor)] = (told, flat, self.bytes[offset:end])
            placed.append(known[id(tensor)])
            offset = -(-end // _ALIGNED) * _ALIGNED
        return placed

    def output(self, place: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
        """A view of an output ``shape`` at a place."""
        count = math.prod(shape)
        flat = self.bytes[place : place + count * dtype.itemsize]
        return flat.view(dtype).view(*shape) if count else torch.empty(shape, dtype=dtype)
