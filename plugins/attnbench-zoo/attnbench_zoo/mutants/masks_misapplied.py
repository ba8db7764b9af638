"""Masks that are dropped, misread, or applied where they hide nothing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)


@_attention(
    "timm#2236",
    killers=(
        "weights_sum_to_one",
        "masking_equals_deleting",
    ),
)
class MaskMultipliedAfterSoftmax(Attention):
    """The mask is multiplied in after softmax, so that rows no longer sum to 1."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores


@_attention("addons#133", killers=("masked_weights_are_zero",))
class MaskNeverApplied(Attention):
    """The mask is computed and handed around, and nothing uses it."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-1)

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores


@_attention(
    "OpenNMT-py#272",
    killers=(
        "masked_weights_are_zero",
        "item_alone_equals_item_in_batch",
    ),
)
class MaskOfTheFirstItem(Attention):
    """Every item of a batch gets the mask of the first."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return super().hide(scores, self._first(allowed))

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return super().normalise(hidden, self._first(allowed))

    def _first(self, allowed: Tensor) -> Tensor:
        return allowed[:1].expand_as(allowed) if allowed.dim() > 2 else allowed


@_attention("flamingo-pytorch#10", "ParlAI#3068", killers=("masked_weights_are_zero",))
class MaskedFillThrownAway(Attention):
    """``masked_fill`` is called, and what it returns is dropped."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        scores.masked_fill(~allowed, -math.inf)
        return scores

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        weights = hidden.softmax(-1)
        weights.masked_fill(~allowed, 0.0)
        return weights


@_attention(
    "x-transformers#160",
    "halonet-pytorch#4",
    killers=(
        "masked_weights_are_zero",
        "every_attendable_key_matters",
    ),
)
class PolarityInverted(Attention):
    """A boolean mask is read as True = hidden."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = ~attn_mask
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("transformers#41443", killers=("masking_equals_deleting",))
class BooleanMaskAdded(Attention):
    """A boolean mask is added to the scores as 0 and 1."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        if attn_mask is not None:
            attn_mask = attn_mask.to(query.dtype)
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("own", killers=("causal_and_padding_combine",))
class BiasDroppedBesideLengths(Attention):
    """A floating mask is not added where lengths are given too."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, is_causal)
        return allowed, bias if valid_lens is None else torch.zeros_like(bias)


@_attention("own", killers=("causal_and_padding_combine",))
class LongestLengthWhenCausal(Attention):
    """Of the lengths of an item's queries the longest is taken, where causality is asked for."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        if is_causal and valid_lens is not None and valid_lens.dim() == 2:
            valid_lens = valid_lens.amax(-1)
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("own", killers=("hidden_slots_may_hold_nan",))
class SilencedByTheMaskAlone(Attention):
    """A slot that a mask and lengths hide together from every query is not silenced."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        self.alone, _ = super().mask(query, key, attn_mask, None, is_causal)
        if valid_lens is not None and attn_mask is None:
            self.alone = self.alone & self.lengths(valid_lens, query, key.shape[-2])
        return super().mask(query, key, attn_mask, valid_lens, is_causal)

    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        return super().silence_value(value, self.alone)


@_attention("own", killers=("empty_rows_give_zeros",))
class QueryMaskLostBesideLengths(Attention):
    """A mask (..., L, 1) is dropped where lengths are given too."""

    def mask(self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, *rest: Any) -> Any:
        if attn_mask is not None and valid_lens is not None and attn_mask.shape[-1] == 1:
            attn_mask = None if key.shape[-2] > 1 else attn_mask
        return super().mask(query, key, attn_mask, valid_lens, *rest)


@_attention("own", killers=("masked_slots_are_inert",))
class MaskReadAsLength(Attention):
    """A mask's number of keys is taken for a length, as if it left the first ones."""

    def mask(self, *inputs: Any) -> Any:
        allowed, bias = super().mask(*inputs)
        keys = torch.arange(allowed.shape[-1], device=allowed.device)
        return keys < allowed.sum(-1, keepdim=True), bias
