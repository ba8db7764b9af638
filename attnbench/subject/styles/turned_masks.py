"""Masks turned into the form that a callee takes; here True means that a query sees a key."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.errors import RefusalError


def with_causality(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Combine a mask with causality aligned to the top left, like ``is_causal``."""
    q_len, kv_len = query.shape[-2], key.shape[-2]
    seen = torch.ones(q_len, kv_len, dtype=torch.bool, device=mask.device).tril()
    return mask & seen if mask.dtype == torch.bool else mask.masked_fill(~seen, float("-inf"))


def padding_as(real: Tensor, form: str, hidden: Tensor) -> Tensor:
    """Convert a padding mask ``(B, S)`` to the form that a layer takes.

    Args:
        real: True for real tokens.
        form: ``"boolean"``, ``"ones"``, ``"padding"`` (True for padding) or ``"additive"``.
        hidden: hidden states, for their dtype and device.
    """
    if form == "additive":
        low = torch.finfo(hidden.dtype).min
        return hidden.new_zeros(real.shape).masked_fill(~real, low)[:, None, None]
    return {"boolean": real, "ones": real.long(), "padding": ~real}[form]


def for_multihead(
    mask: Tensor,
    lead: tuple[int, ...],
    shape: tuple[int, ...],
    *,
    takes_padding: bool,
    heads: int | None,
) -> dict[str, Tensor]:
    """A mask as ``nn.MultiheadAttention`` takes it: for keys, for all items, or for each head.

    Args:
        mask: boolean, or floating and added to the scores.
        lead: leading sizes of the query.
        shape: ``(*lead, L, S)``.
        takes_padding: whether the module takes ``key_padding_mask``.
        heads: its number of heads, for which a mask is repeated.

    Raises:
        RefusalError: the mask differs by item, and the number of heads is not known.
    """
    hidden = ~mask if mask.dtype == torch.bool else mask
    if mask.dim() > 2 and mask.shape[-2] == 1 and takes_padding:
        return {"key_padding_mask": hidden.expand(*lead, 1, shape[-1]).reshape(-1, shape[-1])}
    if mask.dim() == 2:
        return {"attn_mask": hidden.expand(shape[-2:])}
    if heads is None:
        raise RefusalError("it has no num_heads to repeat a mask for")
    whole = hidden.expand(shape).reshape(-1, *shape[-2:])
    return {"attn_mask": whole.repeat_interleave(heads, 0)}
