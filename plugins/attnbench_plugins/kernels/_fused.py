"""torch's fused attention for any leading sizes, feature sizes and masks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from attnbench_plugins._widen import widen
from attnbench_plugins.kernels._folding import fold, fold_mask

__all__ = ["fused_attention"]


def _padded(tensor: Tensor, features: int) -> Tensor:
    """Pad with zeros to a number of features; returns the tensor itself if none are missing."""
    missing = features - tensor.shape[-1]
    return pad(tensor, (0, missing)) if missing else tensor


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
        mask = fold_mask(mask, lead)
        mask = mask.expand(*mask.shape[:-1], key.shape[-2])
    elif is_causal and query.shape[-2] != key.shape[-2]:
        # the operator's own flag is aligned to the top left
        sizes = query.shape[-2], key.shape[-2]
        mask = torch.ones(sizes, dtype=torch.bool, device=query.device)
        mask = mask.tril(sizes[1] - sizes[0])
        is_causal = False
    # torch leaves the fused path if values and keys differ in size
    wide = max(query.shape[-1], features)
    query, key, value = (fold(_padded(t, wide)) for t in (query, key, value))
    output = scaled_dot_product_attention(query, key, value, mask, 0.0, is_causal, scale=scale)
    return output[..., :features].reshape(*lead, *output.shape[-2:-1], features).to(dtype)
