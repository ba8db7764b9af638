r"""The kernels of additive and Gaussian attention, at about the speed of a dot product.

Exact, forward and backward, without a tensor of ``L·S·h``; see :mod:`.sums` for the form.

Under softmax ``−½‖q − k‖²`` equals ``qᵀk − ½‖k‖²``, which torch's fused attention could compute.
But if a query and some keys are close to each other and far from all others, no choice of origin
keeps both terms small, and their difference loses all accuracy. ``gaussian/differences`` therefore
takes differences first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

import attnbench
from attnbench.testing import transforms_active, widen
from attnbench_kernels.pairwise import pairwise_attention
from attnbench_kernels.sums import runs_as


def additive(
    module: Any,
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


def concat_tanh_sum(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """The additive kernel with equal weights and a bias; sizes as of :func:`additive`."""
    q, k, v, weight, bias = widen(query, key, value, module.weight, module.bias)
    w_q, w_k = weight[:, : module.query_size], weight[:, module.query_size :]
    equal = bias.new_full(bias.shape, module.scale)
    output = pairwise_attention(q @ w_q.mT + bias, k @ w_k.mT, equal, v, attn_mask, is_causal)
    return output.to(query.dtype)


def gaussian(
    module: Any,
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


def _supports(case: attnbench.Case) -> str | None:
    if transforms_active():
        return "an operator of its own, which torch.func's transforms cannot see inside"
    if case.device.partition(":")[0] in ("cpu", "cuda"):
        return None
    return f"written for the CPU and for CUDA, and not tried on {case.device}"


@attnbench.hookimpl
def attnbench_kernels() -> Iterable[attnbench.KernelSpec]:
    """One kernel for each of three scoring functions."""
    every: tuple[tuple[str, str, Callable[..., Tensor]], ...] = (
        ("additive", "factorised", additive),
        ("concat_tanh_sum", "factorised", concat_tanh_sum),
        ("gaussian", "differences", gaussian),
    )
    for scoring, name, attend in every:
        yield attnbench.KernelSpec(
            name=name,
            scoring=scoring,
            attend=attend,
            supports=_supports,
            priority=10,
            runs_as=runs_as,
        )
