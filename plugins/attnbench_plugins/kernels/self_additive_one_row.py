"""Kernel ``self_additive/one_row``: one row of weights serves every query."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

import attnbench
from attnbench_plugins._widen import widen
from attnbench_plugins.kernels._one_row import attend_one_row
from attnbench_plugins.kernels._supports import on_known_devices
from attnbench_plugins.scorings.self_additive import SelfAdditiveScoring

__all__ = ["attend"]


def attend(
    module: SelfAdditiveScoring,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Output ``(..., L, Ev)`` of query ``(..., L, Eq)``, key ``(..., S, Ek)`` and their values."""
    k, v, weight, vector = widen(key, value, module.key_proj.weight, module.score_vector)
    return attend_one_row((k @ weight.mT).tanh() @ vector, query, v, attn_mask, is_causal)


@attnbench.hookimpl
def attnbench_kernels() -> Iterable[attnbench.KernelSpec]:
    """The kernel ``self_additive/one_row``."""
    yield attnbench.KernelSpec(
        name="one_row",
        scoring="self_additive",
        attend=attend,
        supports=on_known_devices,
        priority=10,
    )
