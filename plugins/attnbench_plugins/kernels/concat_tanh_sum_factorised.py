"""Kernel ``concat_tanh_sum/factorised``: the additive kernel with equal weights and a bias."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

import attnbench
from attnbench_plugins._widen import widen
from attnbench_plugins.kernels._pairwise import pairwise_attention
from attnbench_plugins.kernels._sums import runs_as
from attnbench_plugins.kernels._supports import on_known_devices
from attnbench_plugins.scorings.concat_tanh_sum import ConcatTanhSumScoring

__all__ = ["attend"]


def attend(
    module: ConcatTanhSumScoring,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Output ``(..., L, Ev)`` of query ``(..., L, Eq)``, key ``(..., S, Ek)`` and their values."""
    q, k, v, weight, bias = widen(query, key, value, module.weight, module.bias)
    w_q, w_k = weight[:, : module.query_size], weight[:, module.query_size :]
    equal = bias.new_full(bias.shape, module.scale)
    output = pairwise_attention(q @ w_q.mT + bias, k @ w_k.mT, equal, v, attn_mask, is_causal)
    return output.to(query.dtype)


@attnbench.hookimpl
def attnbench_kernels() -> Iterable[attnbench.KernelSpec]:
    """The kernel ``concat_tanh_sum/factorised``."""
    yield attnbench.KernelSpec(
        name="factorised",
        scoring="concat_tanh_sum",
        attend=attend,
        supports=on_known_devices,
        priority=10,
        runs_as=runs_as,
    )
