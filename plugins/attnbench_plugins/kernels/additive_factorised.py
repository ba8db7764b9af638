"""Kernel ``additive/factorised``: additive attention at about the speed of a dot product.

Exact, forward and backward, without a tensor of ``L·S·h``; see :mod:`._sums` for the form.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

import attnbench
from attnbench_plugins._widen import widen
from attnbench_plugins.kernels._pairwise import pairwise_attention
from attnbench_plugins.kernels._sums import runs_as
from attnbench_plugins.kernels._supports import on_known_devices
from attnbench_plugins.scorings.additive import AdditiveScoring

__all__ = ["attend"]


def attend(
    module: AdditiveScoring,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Output ``(..., L, Ev)`` of query ``(..., L, Eq)``, key ``(..., S, Ek)`` and their values."""
    q, k, v, w_q, w_k, w_v = widen(
        query, key, value, module.query_proj.weight, module.key_proj.weight, module.score_vector
    )
    output = pairwise_attention(q @ w_q.mT, k @ w_k.mT, w_v, v, attn_mask, is_causal)
    return output.to(query.dtype)


@attnbench.hookimpl
def attnbench_kernels() -> Iterable[attnbench.KernelSpec]:
    """The kernel ``additive/factorised``."""
    yield attnbench.KernelSpec(
        name="factorised",
        scoring="additive",
        attend=attend,
        supports=on_known_devices,
        priority=10,
        runs_as=runs_as,
    )
