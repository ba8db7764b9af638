"""Kernel ``dot/fused``: torch's fused attention without its scale."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

import attnbench
from attnbench_plugins.kernels._fused import fused_attention
from attnbench_plugins.kernels._supports import on_known_devices
from attnbench_plugins.scorings.dot import DotScoring

__all__ = ["attend"]


def attend(
    module: DotScoring,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Output ``(..., L, Ev)`` of query ``(..., L, E)``, key ``(..., S, E)`` and their values."""
    return fused_attention(query, key, value, attn_mask, is_causal)


@attnbench.hookimpl
def attnbench_kernels() -> Iterable[attnbench.KernelSpec]:
    """The kernel ``dot/fused``."""
    yield attnbench.KernelSpec(
        name="fused",
        scoring="dot",
        attend=attend,
        supports=on_known_devices,
        priority=10,
    )
