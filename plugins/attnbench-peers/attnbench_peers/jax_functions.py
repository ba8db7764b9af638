"""JAX and Flax: attention functions, forward only."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

import attnbench
from attnbench.adapters import flash
from attnbench_peers._arrays import FORWARD_ONLY, on_tensors
from attnbench_peers.library import LIBRARIES

__all__ = ["attnbench_mechanisms"]

DTYPES = ("float32", "float16")  # float64 needs a flag, and NumPy has no bfloat16


def _jax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    from jax.nn import dot_product_attention

    return on_tensors(dot_product_attention)(q, k, v, mask=mask, scale=scale, is_causal=causal)


def _flax(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    from flax.nnx import dot_product_attention

    return on_tensors(dot_product_attention)(q, k, v, mask=mask, is_causal=causal)


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """``jax.nn.dot_product_attention`` and Flax's."""
    conventions = {**FORWARD_ONLY, "empty_rows": "mean", "causal": "top_left"}
    if LIBRARIES["jax"].installed:
        yield flash(_jax, name="jax_dot_product", dtypes=DTYPES, conventions=conventions)
    if LIBRARIES["flax"].installed:
        yield flash(_flax, name="flax_dot_product", dtypes=DTYPES, conventions=conventions)
