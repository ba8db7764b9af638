"""Messages between processes, in which a tensor is its bytes."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor


class _Pickler(pickle.Pickler):
    """Writes a tensor as its bytes: of its own pickle torch makes an archive, in 0.1 ms."""

    def reducer_override(self, value: Any) -> Any:
        """How a tensor is made again; anything else as always."""
        if not isinstance(value, Tensor):
            return NotImplemented
        # a copy of its own: one element may have any stride, also where it is called contiguous
        held = torch.empty(value.shape, dtype=value.dtype).copy_(value.detach())
        plain = held.flatten().view(torch.uint8).numpy().tobytes()
        return _tensor, (plain, value.dtype, tuple(value.shape))


def _tensor(plain: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not plain:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(plain), dtype=dtype).view(shape)


def pickled(value: Any) -> bytes:
    """What ``pickle.loads`` reads, in any process that has this module."""
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()
