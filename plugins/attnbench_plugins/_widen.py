"""Half types are scored in float32, so that a score loses no more than rounding its inputs did."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["widen"]


def widen(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, half types as float32, all others as they are."""
    half = (torch.float16, torch.bfloat16)
    return tuple(t.float() if t.dtype in half else t for t in tensors)
