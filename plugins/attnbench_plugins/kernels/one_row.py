"""Kernels of scoring functions that ignore the query: one row of weights serves every query.

They do O(S) work instead of O(L·S).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

import attnbench
from attnbench.testing import widen
from attnbench_plugins.kernels._fused import fused_attention, on_known_devices

__all__ = ["attend_one_row"]


def _concat_linear(module: Any, key: Tensor) -> Tensor:
    """The key's part of the linear map; the query's is the same for every key."""
    weight, bias = widen(module.weight, module.bias)
    return key @ weight[module.query_size :] + bias


def _self_additive(module: Any, key: Tensor) -> Tensor:
    """One hidden layer on the key."""
    weight, vector = widen(module.key_proj.weight, module.score_vector)
    return (key @ weight.mT).tanh() @ vector


def _self_tanh(module: Any, key: Tensor) -> Tensor:
    """The tanh of a linear map of the key."""
    weight, bias = widen(module.weight, module.bias)
    return (key @ weight + bias).tanh()


def _vector_sum(module: Any, key: Tensor) -> Tensor:
    """The key's term; the query's is the same for every key, so its vector gets a gradient of 0."""
    w_q, w_k = widen(module.query_vector, module.key_vector)
    return key @ w_k + w_q[:0].sum()


def attend_one_row(
    scores: Tensor, query: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool
) -> Tensor:
    """Softmax over the keys' scores, times the values, the same for every query.

    If the mask differs between queries, the weights do too; this is then computed as fused
    attention over keys with one feature.

    Args:
        scores: ``(..., S)``, one for each key.
        query: ``(..., L, Eq)``, any values; its gradient is exactly 0.
        value: ``(..., S, Ev)``, in the dtype of ``scores``.
        mask: boolean or floating, broadcasts to ``(..., L, S)``; every row has a key.
        is_causal: causal, aligned to the bottom right; only without a mask and with ``L <= S``.

    Returns:
        ``(..., L, Ev)`` in the dtype of ``query``, contiguous.
    """
    nothing = query[..., :0].sum(-1, keepdim=True).to(scores.dtype)
    if is_causal or (mask is not None and mask.shape[-2] > 1):
        output = fused_attention(nothing + 1, scores.unsqueeze(-1), value, mask, is_causal)
        return output.to(query.dtype)
    row = scores.unsqueeze(-2)
    if mask is not None:
        row = row.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else row + mask
    return (row.softmax(-1) @ value + nothing).to(query.dtype)


_KEY_SCORES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "concat_linear": _concat_linear,
    "self_additive": _self_additive,
    "self_tanh": _self_tanh,
    "vector_sum": _vector_sum,
}
"""By scoring function: the scores ``(..., S)`` of a module and keys ``(..., S, Ek)``."""


def _attend_with(score: Callable[[Any, Tensor], Tensor]) -> Callable[..., Tensor]:
    def attend(
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        key, value = widen(key, value)
        return attend_one_row(score(module, key), query, value, attn_mask, is_causal)

    return attend


@attnbench.hookimpl
def attnbench_kernels() -> Iterable[attnbench.KernelSpec]:
    """One kernel for each scoring function that ignores the query."""
    for scoring, score in _KEY_SCORES.items():
        yield attnbench.KernelSpec(
            name="one_row",
            scoring=scoring,
            attend=_attend_with(score),
            supports=on_known_devices,
            priority=10,
        )
