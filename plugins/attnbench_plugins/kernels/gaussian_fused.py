r"""Kernel ``gaussian/fused``: torch's fused attention with a bias a key.

Under softmax ``−½‖q − k‖²`` is ``qᵀk − ½‖k‖²``, for ``−½‖q‖²`` is the same for every key. Far from
the origin both terms are large and their difference is small, so the queries' mean becomes the
origin first. (So could the keys' mean, but a huge key that is hidden from most queries would drag
it away from all others.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

import attnbench
from attnbench_plugins._widen import widen
from attnbench_plugins.gaussian import GaussianScoring
from attnbench_plugins.kernels._fused import fused_attention
from attnbench_plugins.kernels._supports import on_known_devices

__all__ = ["attend"]


def attend(
    module: GaussianScoring,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Output ``(..., L, Ev)`` of query ``(..., L, E)``, key ``(..., S, E)`` and their values."""
    q, k, v, bandwidth = widen(query, key, value, module.bandwidth)
    centre = q.detach().mean(-2, keepdim=True)
    q, k = (q - centre) * bandwidth, (k - centre) * bandwidth
    bias = -0.5 * k.square().sum(-1, keepdim=True)
    # torch's fused path takes no gradient by a mask, and under vmap falls back on no other
    needs_gradient = any(t.requires_grad for t in (query, key, bandwidth))
    if torch.is_grad_enabled() and needs_gradient:
        q, k = _with_bias(q, k, bias)
    elif attn_mask is None and not is_causal:
        attn_mask = bias.mT
    elif attn_mask is not None and attn_mask.shape[-2] == 1:
        if attn_mask.dtype == torch.bool:
            attn_mask = bias.mT.masked_fill(~attn_mask, -math.inf)
        else:
            attn_mask = bias.mT + attn_mask
    else:  # a mask that differs from query to query stays as it is; the bias is one more feature
        q, k = _with_bias(q, k, bias)
    return fused_attention(q, k, v, attn_mask, is_causal).to(query.dtype)


def _with_bias(q: Tensor, k: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Query and key with one more feature, whose product is the bias."""
    return torch.cat([q, torch.ones_like(q[..., :1])], -1), torch.cat([k, bias], -1)


@attnbench.hookimpl
def attnbench_kernels() -> Iterable[attnbench.KernelSpec]:
    """The kernel ``gaussian/fused``."""
    yield attnbench.KernelSpec(
        name="fused",
        scoring="gaussian",
        attend=attend,
        supports=on_known_devices,
        priority=10,
    )
