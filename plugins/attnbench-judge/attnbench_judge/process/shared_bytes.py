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


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def span_of(tensor: Tensor) -> int:
    """The number of elements of storage from the first to the last one of a tensor."""
    if tensor.is_contiguous() or not tensor.numel():
        return tensor.numel()
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in pairs)


def same_bytes(one: Tensor, other: Tensor) -> bool:
    """Whether two contiguous tensors hold the same bytes."""
    if not one.numel() or not other.numel():
        return one.numel() == other.numel()
    return torch.equal(*(t.reshape(-1).view(torch.uint8) for t in (one, other)))


def elements_of(tensor: Tensor) -> Tensor:
    """A view of all that a tensor spans, as integers of the width of its elements."""
    found = tensor.detach().view(_INTEGERS[tensor.element_size()])
    return found.as_strided((span_of(tensor),), (1,))


class SharedBytes:
    """A piece of memory whose size neither side can change.

    The first half is for inputs, the second, from ``place`` on, for an output.

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
        self._integers = {width: self.bytes.view(dtype) for width, dtype in _INTEGERS.items()}
        self.place = self.room = size // 2

    def close(self) -> None:
        """Close the file; the memory goes with its last tensor."""
        os.close(self.file)

    def laid_out(self, tensors: Sequence[Tensor]) -> list[tuple[list[Any], Tensor, Tensor]]:
        """Places for tensors, from the start: what to tell of each, its
        elements as integers, and theirs there. A tensor within a storage keeps its offset in it.

        Tensors of one storage have one there, too.

        Raises:
            ShapeError: they do not fit into the inputs' half.
        """
        placed, end = [], 0
        known: dict[int, int] = {}
        for tensor in tensors:
            before = tensor.storage_offset() if tensor.numel() else 0
            count, width = before + span_of(tensor), tensor.element_size()
            storage = tensor.untyped_storage()
            offset = known.setdefault(storage.data_ptr(), -(-end // _ALIGNED) * _ALIGNED)
            end = max(end, offset + storage.nbytes())
            if end > self.place:
                raise ShapeError(
                    f"the inputs of a call take {end} bytes or more, and the judge shares "
                    f"{self.place}; use smaller cases."
                )
            dtype = str(tensor.dtype).removeprefix("torch.")
            told = [dtype, list(tensor.shape), list(tensor.stride()), offset, count, before]
            own = elements_of(tensor)
            there = self._integers[width].as_strided(
                own.shape, own.stride(), offset // width + before
            )
            placed.append((told, own, there))
        return placed

    def claimed(self, dtype: object, shape: object) -> Tensor:
        """A view of the output, as the one who wrote it describes it.

        Raises:
            ValueError: there is no such tensor, or no room for it.
        """
        named = _DTYPES.get(dtype) if isinstance(dtype, str) else None
        sized = isinstance(shape, list) and all(type(n) is int and 0 <= n < 2**40 for n in shape)
        if named is None or not isinstance(shape, list) or not sized or len(shape) > 16:
            raise ValueError("an answer without shape and dtype of a tensor")
        count = math.prod(shape)
        if math.prod(n or 1 for n in shape) * named.itemsize > self.room:  # also if it is empty
            raise ValueError(f"an answer that claims the shape {shape}")
        flat = self.bytes[self.place : self.place + count * named.itemsize]
        return flat.view(named).view(*shape) if count else torch.empty(shape, dtype=named)
