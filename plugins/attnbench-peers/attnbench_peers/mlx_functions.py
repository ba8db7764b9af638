"""MLX: its fused attention, forward only."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

import attnbench
from attnbench.adapters import sdpa
from attnbench_peers._arrays import FORWARD_ONLY, on_tensors
from attnbench_peers.library import LIBRARIES


def _mlx(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    import mlx.core as mx

    def attend(*arrays: Any, mask: Any) -> Any:
        mask = None if mask is None else mx.array(mask)
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        fused = mx.fast.scaled_dot_product_attention
        return fused(*map(mx.array, arrays), scale=factor, mask=mask)

    return on_tensors(attend)(query, key, value, mask=attn_mask)


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """``mlx.core.fast.scaled_dot_product_attention``."""
    if LIBRARIES["mlx"].installed:
        conventions = {**FORWARD_ONLY, "empty_rows": "mean", "internal_dtype": "float32"}
        # a row of -inf in a floating mask is NaN
        low = float(np.finfo(np.float32).min)
        conventions |= {"masks": ("boolean", "floating"), "mask_value": low}
        yield sdpa(_mlx, name="mlx_sdpa", dtypes=("float32",), conventions=conventions)
