"""Kernel ``scaled_dot/fused``: torch's fused attention."""

from __future__ import annotations

import math
from collections.abc import Iterable

from torch import Tensor

import attnbench
from attnbench_plugins.kernels._fused import fused_attention
from attnbench_plugins.kernels._supports import on_known_devices
from attnbench_plugins.scorings.scaled_dot import ScaledDotScoring

__all__ = ["attend"]


def attend(
    module: ScaledDotScoring,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Output ``(..., L, Ev)`` of query ``(..., L, E)``, key ``(..., S, E)`` and their values."""
    scale = 1.0 / math.sqrt(query.shape[-1])
    return fused_attention(query, key, value, attn_mask, is_causal, scale)


@attnbench.hookimpl
def attnbench_kernels() -> Iterable[attnbench.KernelSpec]:
    """The kernel ``scaled_dot/fused``."""
    yield attnbench.KernelSpec(
        name="fused",
        scoring="scaled_dot",
        attend=attend,
        supports=on_known_devices,
        priority=10,
    )
