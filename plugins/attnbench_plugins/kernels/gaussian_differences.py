r"""Kernel ``gaussian/differences``: differences first, at about the speed of a dot product.

Under softmax ``−½‖q − k‖²`` equals ``qᵀk − ½‖k‖²``, which torch's fused attention could compute.
But if a query and some keys are close to each other and far from all others, no choice of origin
keeps both terms small, and their difference loses all accuracy. See :mod:`._sums` for the form.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

import attnbench
from attnbench_plugins._widen import widen
from attnbench_plugins.kernels._pairwise import pairwise_attention
from attnbench_plugins.kernels._sums import runs_as
from attnbench_plugins.kernels._supports import on_known_devices
from attnbench_plugins.scorings.gaussian import GaussianScoring

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
    rate = (-0.5 * bandwidth.square()).expand(query.shape[-1])
    return pairwise_attention(q, k, rate, v, attn_mask, is_causal, squares=True).to(query.dtype)


@attnbench.hookimpl
def attnbench_kernels() -> Iterable[attnbench.KernelSpec]:
    """The kernel ``gaussian/differences``."""
    yield attnbench.KernelSpec(
        name="differences",
        scoring="gaussian",
        attend=attend,
        supports=on_known_devices,
        priority=10,
        runs_as=runs_as,
    )
