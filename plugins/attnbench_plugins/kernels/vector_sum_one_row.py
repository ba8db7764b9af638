"""Kernel ``vector_sum/one_row``: one row of weights serves every query."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

import attnbench
from attnbench_plugins._widen import widen
from attnbench_plugins.kernels._one_row import attend_one_row
from attnbench_plugins.kernels._supports import on_known_devices
from attnbench_plugins.scorings.vector_sum import VectorSumScoring

__all__ = ["attend"]


def attend(
    module: VectorSumScoring,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Output ``(..., L, Ev)`` of query ``(..., L, Eq)``, key ``(..., S, Ek)`` and their values."""
    k, v, w_q, w_k = widen(key, value, module.query_vector, module.key_vector)
    # the query's term is the same for every key, so its vector gets a gradient of exactly 0
    scores = k @ w_k + w_q[:0].sum()
    return attend_one_row(scores, query, v, attn_mask, is_causal)


@attnbench.hookimpl
def attnbench_kernels() -> Iterable[attnbench.KernelSpec]:
    """The kernel ``vector_sum/one_row``."""
    yield attnbench.KernelSpec(
        name="one_row",
        scoring="vector_sum",
        attend=attend,
        supports=on_known_devices,
        priority=10,
    )
