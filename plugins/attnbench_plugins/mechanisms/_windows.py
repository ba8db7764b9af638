"""Attention to a few neighbouring keys: time and memory grow with L times the window, not L·S.

Each query attends to ``width`` slots from a start of its own. The slots are gathered, so that every
query becomes an item with leading sizes ``(..., L)``, 1 query and ``width`` keys, and any scoring
function can score it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import attend
from attnbench.testing import Call


@dataclass(frozen=True)
class Band:
    """The slots to which each query may attend.

    Args:
        index: ``(L, W)``, or ``(..., L, W)`` if items differ: slots from 0 to S - 1.
        attn_mask: boolean or floating, broadcasts to ``(..., L, W)``.
        kv_len: S.
    """

    index: Tensor
    attn_mask: Tensor
    kv_len: int

    def take(self, tensor: Tensor) -> Tensor:
        """Gather ``(..., S, E)`` to ``(..., L, W, E)``."""
        index, (*lead, slots, size) = self.index, tensor.shape
        if index.dim() > 2:  # one long list of slots, so that the gradient is not (..., L, S, E)
            count = torch.arange(index.shape[:-2].numel(), device=index.device)
            index = index + (count * slots).reshape(*index.shape[:-2], 1, 1)
            neighbours = tensor.reshape(-1, size).index_select(0, index.flatten())
        else:
            neighbours = tensor.index_select(-2, index.flatten())
        return neighbours.reshape(*lead, *index.shape[-2:], size)

    def attend(
        self, scoring: nn.Module, call: Call, *, factor: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the output ``(..., L, Ev)``, and weights ``(..., L, S)`` if requested.

        Args:
            scoring: a scoring function's module.
            call: query, key and value.
            factor: ``(..., L, W)``, by which the weights of the windows are multiplied.
            options: ``dropout_p`` and ``return_weights`` of :func:`attnbench.attend`.
        """
        query, key, value = call.query.unsqueeze(-2), self.take(call.key), self.take(call.value)
        if factor is not None:
            value = (value * factor.unsqueeze(-1)).to(value.dtype)
        mask = self.attn_mask.unsqueeze(-2)
        # an item has one query and few keys: a kernel's blocks would be nearly all padding
        result = attend(scoring, query, key, value, attn_mask=mask, kernel="plain", **options)
        if not isinstance(result, tuple):
            return result.squeeze(-2), None
        output, weights = (tensor.squeeze(-2) for tensor in result)
        if factor is not None:
            weights = (weights * factor).to(output)
        row = weights.new_zeros(*weights.shape[:-1], self.kv_len)
        return output, row.scatter(-1, self.index.expand(weights.shape), weights)


def band(
    call: Call, start: Tensor, width: int, *, low: Tensor, high: Tensor, is_causal: bool = False
) -> Band:
    """The slots from a start, and which of them each query may attend to.

    Args:
        call: the call, whose mask applies to the slots.
        start: ``(L,)`` or ``(..., L)``: the first slot, moved to a place where ``width`` slots fit.
        width: number of slots, at most S.
        low, high: like ``start``: a query may attend to slots from ``low`` to ``high`` inclusive.
        is_causal: also hide the future, aligned to the bottom right.
    """
    q_len, kv_len = call.query.shape[-2], call.key.shape[-2]
    width = min(width, kv_len)
    slots = torch.arange(width, device=start.device)
    index = start.long().clamp(0, max(kv_len - width, 0)).unsqueeze(-1) + slots
    allowed = (index >= low.unsqueeze(-1)) & (index <= high.unsqueeze(-1))
    if is_causal:
        now = torch.arange(q_len, device=start.device).unsqueeze(-1) + (kv_len - q_len)
        allowed = allowed & (index <= now)
    mask = call.mask.as_tensor()
    if mask is not None:
        lead = index.shape[:-2] if index.dim() > 2 else mask.shape[:-2]
        mask = mask.expand(*lead, q_len, kv_len).gather(-1, index.expand(*lead, q_len, width))
        hides = mask.dtype == torch.bool
        allowed = allowed & mask if hides else mask.masked_fill(~allowed, float("-inf"))
    return Band(index, allowed, kv_len)


def last_slots(call: Call, is_causal: bool = False) -> Tensor:
    """The number of slots up to the last one that a query may see; broadcasts to ``(..., L)``.

    It is counted for each query, so that padding, other queries and the future have no effect.
    """
    q_len, kv_len = call.query.shape[-2], call.key.shape[-2]
    ends = torch.arange(1, kv_len + 1, device=call.query.device)
    allowed = call.mask.allowed
    if allowed is None:
        last = ends.new_full((1,), kv_len)
    elif kv_len:
        last = (ends * allowed).amax(-1)
    else:
        last = ends.new_zeros(1)
    if is_causal:
        now = torch.arange(1, q_len + 1, device=call.query.device) + (kv_len - q_len)
        last = torch.minimum(last, now.clamp_min(0))
    return last
