"""Half types are scored in float32, so that a score loses no more than the rounding of inputs."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["widen"]


def widen(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Convert tensors of half types to float32, and leave all others unchanged."""
    half = (torch.float16, torch.bfloat16)
    return tuple(t.float() if t.dtype in half else t for t in tensors)
