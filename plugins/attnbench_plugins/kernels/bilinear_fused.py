"""Kernel ``bilinear/fused``: torch's fused attention on the projected query.

Half types are computed in float32, since the projected query would be rounded once more and could
overflow float16.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

import attnbench
from attnbench_plugins._widen import widen
from attnbench_plugins.kernels._fused import fused_attention
from attnbench_plugins.kernels._supports import on_known_devices
from attnbench_plugins.scorings.bilinear import BilinearScoring

__all__ = ["attend"]


def attend(
    module: BilinearScoring,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Output ``(..., L, Ev)`` of query ``(..., L, Eq)``, key ``(..., S, Ek)`` and their values."""
    q, k, v, weight = widen(query, key, value, module.weight)
    projected = q @ (weight * module.scale)
    return fused_attention(projected, k, v, attn_mask, is_causal).to(query.dtype)


@attnbench.hookimpl
def attnbench_kernels() -> Iterable[attnbench.KernelSpec]:
    """The kernel ``bilinear/fused``."""
    yield attnbench.KernelSpec(
        name="fused",
        scoring="bilinear",
        attend=attend,
        supports=on_known_devices,
        priority=10,
    )
