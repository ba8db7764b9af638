"""Kernel ``self_tanh/one_row``: one row of weights serves every query."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

import attnbench
from attnbench_plugins._widen import widen
from attnbench_plugins.kernels._one_row import attend_one_row
from attnbench_plugins.kernels._supports import on_known_devices
from attnbench_plugins.scorings.self_tanh import SelfTanhScoring

__all__ = ["attend"]


def attend(
    module: SelfTanhScoring,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Output ``(..., L, Ev)`` of query ``(..., L, Eq)``, key ``(..., S, Ek)`` and their values."""
    k, v, weight, bias = widen(key, value, module.weight, module.bias)
    return attend_one_row((k @ weight + bias).tanh(), query, v, attn_mask, is_causal)


@attnbench.hookimpl
def attnbench_kernels() -> Iterable[attnbench.KernelSpec]:
    """The kernel ``self_tanh/one_row``."""
    yield attnbench.KernelSpec(
        name="one_row",
        scoring="self_tanh",
        attend=attend,
        supports=on_known_devices,
        priority=10,
    )
