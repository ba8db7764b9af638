"""Masks laid over the wrong axis, which shows only where two sizes are equal."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench_zoo.base import BLOCK, Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)


@_attention("hyunwoongko/transformer#40", killers=("masked_weights_are_zero",))
class MaskOnTheQueryAxis(Attention):
    """The padding of the keys is laid over the queries where L equals S."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        inside = super().lengths(valid_lens, query, kv_len)
        return inside.mT if query.shape[-2] == kv_len else inside


@_attention("own", killers=("masks_broadcast",))
class KeyRowOverTheQueries(Attention):
    """A mask ``(1, S)`` is turned over the queries where L equals S."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        square = query.shape[-2] == key.shape[-2]
        if attn_mask is not None and attn_mask.dim() == 2 and attn_mask.shape[0] == 1 and square:
            attn_mask = attn_mask.mT
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("own", killers=("masked_weights_are_zero",))
class MaskTransposedWhereSquare(Attention):
    """A boolean mask is transposed, which shows no other sign where L equals S."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        square = attn_mask is not None and attn_mask.shape[-1] == attn_mask.shape[-2]
        attn_mask = attn_mask.mT if square else attn_mask
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("own", killers=("masked_weights_are_zero",))
class SharedMaskTakenForPadding(Attention):
    """A mask ``(L, S)`` is taken for one of ``(B, S)`` where L equals B."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        shared = attn_mask is not None and attn_mask.dim() == 2 and query.dim() == 3
        if shared and attn_mask.shape[0] == query.shape[0]:
            attn_mask = attn_mask.unsqueeze(1)
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("own", killers=("masks_broadcast",))
class BiasOfHeadsTakenForItems(Attention):
    """For one query, a floating mask of heads is laid over the items if there are as many."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        if attn_mask is not None and attn_mask.is_floating_point() and query.dim() == 4:
            heads = attn_mask.dim() == 3 and attn_mask.shape[0] == query.shape[0]
            if heads and query.shape[-2] == 1:
                attn_mask = attn_mask.unsqueeze(1)
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("own", killers=("masks_broadcast",))
class RowOfBiasOnTheFirstBlockOnly(Attention):
    """Queries are taken in blocks, and a floating mask of one row ends with the first of them."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, is_causal)
        if bias.dim() > 1 and bias.shape[-2] == 1:
            first = torch.arange(query.shape[-2]).unsqueeze(-1) < BLOCK
            bias = torch.where(first, bias, 0.0)
        return allowed, bias
