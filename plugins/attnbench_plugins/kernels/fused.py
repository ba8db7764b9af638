"""Kernels ``scaled_dot/fused``, ``dot/fused`` and ``bilinear/fused``: torch's fused attention.

It takes any leading sizes, feature sizes and masks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

import attnbench
from attnbench.testing import fold_heads, fold_mask_heads, widen


def on_known_devices(case: attnbench.Case) -> str | None:
    """``None`` on a CPU and on an NVIDIA or AMD GPU, else the reason why it is not supported."""
    if case.device.partition(":")[0] in ("cpu", "cuda"):
        return None
    return f"written for the CPU and for CUDA, and not tried on {case.device}"


def _padded(tensor: Tensor, features: int) -> Tensor:
    """Pad with zeros to a number of features; returns the tensor itself if none are missing."""
    missing = features - tensor.shape[-1]
    return pad(tensor, (0, missing)) if missing else tensor


def _aligned(tensor: Tensor) -> Tensor:
    """Copy what begins between blocks of 16 bytes on a GPU, where torch's kernels raise."""
    if not tensor.is_cuda or torch.compiler.is_compiling():
        return tensor
    return tensor.clone() if tensor.storage_offset() * tensor.element_size() % 16 else tensor


def _added(mask: Tensor, query: Tensor) -> Tensor:
    """The numbers that a boolean mask adds on a GPU.

    For a slot that it hides, torch 2.11 adds -65504 before it calls cuDNN, and scores lie below
    (pytorch#177842).
    """
    if not query.is_cuda or mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(~mask, -math.inf)


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float = 1.0,
) -> Tensor:
    """Softmax over ``scale · qᵀk``, times the values, without a tensor of size ``L·S``.

    Args:
        query: ``(..., L, E)``.
        key: ``(..., S, E)``.
        value: ``(..., S, Ev)``.
        mask: boolean or floating, broadcasts to ``(..., L, S)``; every row has a key.
        is_causal: causal, aligned to the bottom right; only without a mask and with ``L <= S``.
        scale: factor of the scores.

    Returns:
        ``(..., L, Ev)`` in the dtype of ``query``.
    """
    lead, dtype, features = tuple(query.shape[:-2]), query.dtype, value.shape[-1]
    if mask is not None and mask.dtype != torch.bool:
        query, key, value, mask = widen(query, key, value, mask)  # a half type would round the mask
        mask = mask.to(query.dtype)
    if mask is not None:
        mask = fold_mask_heads(mask, lead, heads=True)
        mask = mask.expand(*mask.shape[:-1], key.shape[-2])
    elif is_causal and query.shape[-2] != key.shape[-2]:
        # the operator's own flag is aligned to the top left
        sizes = query.shape[-2], key.shape[-2]
        mask = torch.ones(sizes, dtype=torch.bool, device=query.device)
        mask = mask.tril(sizes[1] - sizes[0])
        is_causal = False
    # torch leaves the fused path if values and keys differ in size
    wide = max(query.shape[-1], features)
    query, key, value = (
        _aligned(fold_heads(_padded(t, wide), heads=True)) for t in (query, key, value)
    )
    mask = mask if mask is None else _added(mask, query)
    output = scaled_dot_product_attention(query, key, value, mask, 0.0, is_causal, scale=scale)
    return output[..., :features].reshape(*lead, *output.shape[-2:-1], features).to(dtype)


def dot(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    *,
    scaled: bool = False,
) -> Tensor:
    """Output ``(..., L, Ev)`` of query ``(..., L, E)``, key ``(..., S, E)`` and their values.

    With ``scaled``, scores are divided by the square root of E.
    """
    scale = 1.0 / math.sqrt(query.shape[-1]) if scaled else 1.0
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
        "scaled_dot": partial(dot, scaled=True),
    }
    for scoring, attend in every.items():
        yield attnbench.KernelSpec(
            name="fused",
            scoring=scoring,
            attend=attend,
            supports=on_known_devices,
            priority=10,
        )
