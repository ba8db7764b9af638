"""Masks turned into the form that a callee takes; here True means that a query sees a key."""

from __future__ import annotations

import math

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
    mask: Tensor | None,
    keys: Tensor | None,
    shape: tuple[int, ...],
    *,
    takes_padding: bool,
    heads: int | None,
) -> dict[str, Tensor]:
    """Masks as ``nn.MultiheadAttention`` takes them: for keys, for all items, or for each head.

    Args:
        mask: boolean, or floating and added to the scores; ``None`` if there is none.
        keys: boolean ``(..., 1, S)``, which keys of an item are real beside it, if any are not.
        shape: ``(..., L, S)``, with all leading sizes.
        takes_padding: whether the module takes ``key_padding_mask``.
        heads: its number of heads, for which a mask is repeated.

    Raises:
        RefusalError: the mask differs by item, and the number of heads is not known.
    """
    for_keys = mask is not None and mask.dim() > 2 and mask.shape[-2] == 1
    if for_keys and keys is None and takes_padding:
        mask, keys = None, mask
    found = {}
    if keys is not None:
        found["key_padding_mask"] = _hidden(keys, mask).expand(*shape[:-2], 1, shape[-1])
        found["key_padding_mask"] = found["key_padding_mask"].reshape(-1, shape[-1])
    if mask is not None and mask.dim() == 2:
        found["attn_mask"] = _hidden(mask).expand(shape[-2:])
    elif mask is not None:
        if heads is None:
            raise RefusalError("it has no num_heads to repeat a mask for")
        whole = _hidden(mask).expand(shape).reshape(-1, *shape[-2:])
        found["attn_mask"] = whole.repeat_interleave(heads, 0)
    return found


def _hidden(mask: Tensor, beside: Tensor | None = None) -> Tensor:
    """A mask in which True means hidden; a floating one stays, or goes with one beside it."""
    if mask.dtype != torch.bool:
        return mask
    if beside is None or beside.dtype == torch.bool:
        return ~mask
    return torch.zeros(mask.shape, dtype=beside.dtype).to(mask.device).masked_fill(~mask, -math.inf)
