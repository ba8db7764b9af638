"""JAX and Flax: attention functions, forward only."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from importlib import import_module
from typing import Any

from torch import Tensor

import attnbench
from attnbench.adapters import flash
from attnbench_peers._arrays import FORWARD_ONLY, on_tensors
from attnbench_peers.library import LIBRARIES

DTYPES = ("float32", "float16")  # float64 needs a flag, and NumPy has no bfloat16
UNOPTIMISED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
SHAPES = 200
"""Of so many the programs are kept: of all that a check draws, they would take 2 GiB."""


@lru_cache
def _compiled(module: str) -> Any:
    """The attention of a module; without a compilation each operation compiles, at each shape."""
    import jax

    function = import_module(module).dot_product_attention
    static = ("is_causal", "scale") if module == "jax.nn" else ("is_causal",)
    compiled = jax.jit(function, static_argnames=static, compiler_options=UNOPTIMISED)

    def call(*given: Any, **options: Any) -> Any:
        if compiled._cache_size() >= SHAPES:
            jax.clear_caches()
        return compiled(*given, **options)

    return call


def _jax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    return on_tensors(_compiled("jax.nn"))(q, k, v, mask=mask, scale=scale, is_causal=causal)


def _flax(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    return on_tensors(_compiled("flax.nnx"))(q, k, v, mask=mask, is_causal=causal)


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """``jax.nn.dot_product_attention`` and Flax's."""
    conventions = {**FORWARD_ONLY, "empty_rows": "mean", "causal": "top_left"}
    conventions["internal_dtype"] = "float32"
    if LIBRARIES["jax"].installed:
        yield flash(_jax, name="jax_dot_product", dtypes=DTYPES, conventions=conventions)
    if LIBRARIES["flax"].installed:
        yield flash(_flax, name="flax_dot_product", dtypes=DTYPES, conventions=conventions)
