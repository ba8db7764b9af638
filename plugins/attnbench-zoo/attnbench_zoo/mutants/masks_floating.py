"""Floating masks: -inf that does not hide, and biases that are not added as they are."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attnbench_zoo.base import BLOCK, Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)


@_attention("own", killers=("masked_weights_are_zero",))
class FloatingMaskHidesNothing(Attention):
    """-inf in a floating mask is clipped to -5 before it is added."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.clamp_min(-5.0)
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("own", killers=("bias_is_added_to_scores",))
class FloatingMaskReadAsBoolean(Attention):
    """Of a floating mask only -inf counts; its finite values are dropped."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        if attn_mask is not None:
            attn_mask = attn_mask if attn_mask.dtype == torch.bool else attn_mask > -math.inf
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("own", killers=("bias_is_added_to_scores",))
class BiasSubtracted(Attention):
    """A floating mask is subtracted from the scores."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, is_causal)
        return allowed, -bias


@_attention("own", killers=("bias_is_added_to_scores",))
class BiasScaledToo(Attention):
    """The scale is applied to scores and floating mask together."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, is_causal)
        return allowed, bias * query.shape[-1] ** -0.5


@_attention("own", killers=("bias_of_all_keys_hides_none",))
class LowBiasHides(Attention):
    """A floating mask hides what lies below -10000, as -inf does."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        if attn_mask is not None and attn_mask.dtype != torch.bool:
            attn_mask = attn_mask.masked_fill(attn_mask < -1e4, -math.inf)
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("own", killers=("bias_gets_its_gradient",))
class BiasDetached(Attention):
    """No gradient reaches a floating mask, so that what it comes from cannot be learned."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, is_causal)
        return allowed, bias.detach()


@_attention("own", killers=("output_has_shape_and_dtype",))
class PromotedByTheMask(Attention):
    """A floating mask in float32 makes an output in float32 of a query in a half type."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *masks: Any, **given: Any) -> Any:
        found = super().forward(query, key, value, *masks, **given)
        mask = masks[0] if masks else given.get("attn_mask")
        if mask is None or mask.dtype != torch.float32 or isinstance(found, tuple):
            return found
        return found.to(torch.promote_types(found.dtype, mask.dtype))


@_attention("own", killers=("bias_of_all_keys_hides_none",))
class FutureAtAConstant(Attention):
    """Beside a floating mask the future is given a score of -10000 instead of none."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        if not is_causal or attn_mask is None or attn_mask.dtype == torch.bool:
            return super().mask(query, key, attn_mask, valid_lens, is_causal)
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, False)
        seen = self.causal(query.shape[-2], key.shape[-2], query.device)
        return allowed, bias.masked_fill(~seen, -1e4)


@_attention("own", killers=("bias_is_added_to_scores",))
class WeightsShownWithoutBias(Attention):
    """The weights that are handed back leave out the finite part of a floating mask."""

    def forward(self, *args: Any, return_weights: bool = False, **given: Any) -> Any:
        if not return_weights:
            return super().forward(*args, **given)
        mask = given.get("attn_mask")
        plain = dict(given)
        if mask is not None and mask.is_floating_point():
            plain["attn_mask"] = mask > -math.inf
        weights = super().forward(*args, return_weights=True, **plain)[1]
        return super().forward(*args, **given), weights


@_attention("own", killers=("hidden_keys_stay_hidden_at_extreme_scores",))
class SmallestOfTheInputsDtype(Attention):
    """What a floating mask hides gets the smallest number of the query's dtype, not -inf."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, is_causal)
        self.least = None
        if attn_mask is not None and attn_mask.is_floating_point():
            self.least = torch.finfo(query.dtype).min
        return allowed, bias

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        if self.least is None:
            return super().hide(scores, allowed)
        return scores.masked_fill(~allowed, self.least)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-1) * allowed.any(-1, keepdim=True)


@_attention("own", killers=("bias_is_added_to_scores",))
class BiasRoundedBesideManyKeys(Attention):
    """Beyond four blocks of keys a floating mask is kept in bfloat16."""

    def mask(self, query: Tensor, key: Tensor, attn_mask: Tensor | None, *rest: Any) -> Any:
        long = key.shape[-2] > 4 * BLOCK
        if long and attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.bfloat16().to(attn_mask.dtype)
        return super().mask(query, key, attn_mask, *rest)


@_attention("own", killers=("bias_of_all_keys_hides_none",))
class VeryLowBiasHides(Attention):
    """A floating mask below -1e9 is taken for -inf."""

    def mask(self, query: Tensor, key: Tensor, attn_mask: Tensor | None, *rest: Any) -> Any:
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.masked_fill(attn_mask < -1e9, float("-inf"))
        return super().mask(query, key, attn_mask, *rest)


@_attention("own", killers=("bias_gets_its_gradient",))
class MaskGradientOfAllItems(Attention):
    """The gradient of a mask (B, 1, 1, S) is that of all items together."""

    def mask(self, query: Tensor, key: Tensor, attn_mask: Tensor | None, *rest: Any) -> Any:
        if attn_mask is not None and attn_mask.requires_grad and attn_mask.shape[-2] == 1:
            attn_mask = attn_mask.clone()
            attn_mask.register_hook(lambda grad: grad.sum(0, keepdim=True).expand_as(grad))
        return super().mask(query, key, attn_mask, *rest)


@_attention("flash-sparse-attention#190", killers=("bias_gets_its_gradient",))
class MaskGradientIsAMeanOfItems(Attention):
    """The gradient of a mask (1, H, L, S) is the mean over the items, and not their sum."""

    def mask(self, query: Tensor, key: Tensor, attn_mask: Tensor | None, *rest: Any) -> Any:
        if attn_mask is not None and attn_mask.requires_grad and attn_mask.dim() == query.dim():
            count = query.shape[0] if attn_mask.shape[0] == 1 else 1
            attn_mask = attn_mask.clone()
            attn_mask.register_hook(lambda grad: grad / count)
        return super().mask(query, key, attn_mask, *rest)
