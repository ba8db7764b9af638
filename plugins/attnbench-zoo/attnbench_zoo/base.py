"""What a right twin is, and what right sources share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnbench import KernelSpec, LayerSpec, MechanismSpec, ScoringSpec

__all__ = ["Spec", "Twin", "widen"]

Spec = ScoringSpec | KernelSpec | MechanismSpec | LayerSpec


@dataclass(frozen=True, eq=False)
class Twin:
    """A right implementation in stages, so that a mistake is a small change of its source.

    Args:
        name: of the twin.
        spec: what is checked; every invariant passes or is skipped.
    """

    name: str
    spec: Spec


def widen(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors, half types as float32, all others as they are."""
    half = (torch.float16, torch.bfloat16)
    return tuple(t.float() if t.dtype in half else t for t in tensors)
