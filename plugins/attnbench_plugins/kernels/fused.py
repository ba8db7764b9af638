"""Kernels ``scaled_dot/fused``, ``dot/fused`` and ``bilinear/fused``: torch's fused attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

import attnbench
from attnbench.testing import widen
from attnbench_plugins.kernels._fused import fused_attention, on_known_devices

__all__ = ["bilinear", "dot", "scaled_dot"]


def dot(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Output ``(..., L, Ev)`` of query ``(..., L, E)``, key ``(..., S, E)`` and their values."""
    return fused_attention(query, key, value, attn_mask, is_causal)


def scaled_dot(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """As :func:`dot`, with scores divided by the square root of E."""
    scale = 1.0 / math.sqrt(query.shape[-1])
    return fused_attention(query, key, value, attn_mask, is_causal, scale)


def bilinear(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """As :func:`dot`, of the projected query ``(..., L, Eq)`` and key ``(..., S, Ek)``.

    Half types are computed in float32, since the projected query would be rounded once more and
    could overflow float16.
    """
    q, k, v, weight = widen(query, key, value, module.weight)
    projected = q @ (weight * module.scale)
    return fused_attention(projected, k, v, attn_mask, is_causal).to(query.dtype)


@attnbench.hookimpl
def attnbench_kernels() -> Iterable[attnbench.KernelSpec]:
    """One kernel for each of three scoring functions."""
    every: dict[str, Callable[..., Tensor]] = {
        "bilinear": bilinear,
        "dot": dot,
        "scaled_dot": scaled_dot,
    }
    for scoring, attend in every.items():
        yield attnbench.KernelSpec(
            name="fused",
            scoring=scoring,
            attend=attend,
            supports=on_known_devices,
            priority=10,
        )
