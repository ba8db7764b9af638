"""Mistakes that only an option shows: dropout, a scale, groups of heads; also beside many keys."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.mutants.base import Group, Mutant
from tests.mutants.twins.attention import ATTENTION, Attention, wide

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)
_BLOCK = 64


class _DropsAnew(torch.autograd.Function):
    """Dropout whose backward pass draws again."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, dropout_p: float) -> Tensor:
        ctx.dropout_p = dropout_p
        return nn.functional.dropout(weights, dropout_p)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return nn.functional.dropout(grad, ctx.dropout_p), None


@_attention("own", killers=("gradients_are_right_with_dropout",))
class BackwardDropsOthers(Attention):
    """The backward pass drops other weights than the forward pass did."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        if not self.training or not dropout_p:
            return weights
        dropped: Tensor = _DropsAnew.apply(weights, dropout_p)  # type: ignore[no-untyped-call]
        return dropped


@_attention("own", killers=("every_call_drops_weights",))
class NoDropoutWhenCausal(Attention):
    """The causal path forgets dropout."""

    def forward(
        self, *args: Any, dropout_p: float = 0.0, is_causal: bool = False, **keywords: Any
    ) -> Any:
        dropout_p = 0.0 if is_causal else dropout_p
        return super().forward(*args, dropout_p=dropout_p, is_causal=is_causal, **keywords)


@_attention("own", killers=("every_call_drops_weights",))
class NoDropoutInHalfPrecision(Attention):
    """The path of half types forgets dropout."""

    def forward(self, query: Tensor, *args: Any, dropout_p: float = 0.0, **keywords: Any) -> Any:
        dropout_p = 0.0 if query.element_size() == 2 else dropout_p
        return super().forward(query, *args, dropout_p=dropout_p, **keywords)


@_attention("own", killers=("every_call_drops_weights",))
class NoDropoutOfManyKeys(Attention):
    """Beyond two blocks of keys nothing is dropped."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        return super().drop(weights, 0.0 if weights.shape[-1] > 2 * _BLOCK else dropout_p)


@_attention("own", killers=("dropout_differs_between_blocks",))
class EachBlockDropsTheSame(Attention):
    """Each block of queries draws from the same place of the random stream."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        if not self.training or weights.shape[-2] <= _BLOCK:
            return super().drop(weights, dropout_p)
        kept = super().drop(torch.ones_like(weights[..., :_BLOCK, :]), dropout_p)
        blocks = -(-weights.shape[-2] // _BLOCK)
        return weights * torch.cat([kept] * blocks, -2)[..., : weights.shape[-2], :]


@_attention("own", killers=("dropout_keeps_the_mean",))
class DropoutInStepsOfABit(Attention):
    """Random bytes are held against the share times 256; the rest is rescaled by the share."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        if not self.training or not dropout_p:
            return weights
        kept = torch.randint(256, weights.shape) >= round(dropout_p * 256)
        return weights * kept / (1 - dropout_p)


@_attention("own", killers=("scale_multiplies_scores",))
class ScaleOfOneIsNone(Attention):
    """A scale of 1 is taken for none."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return super().scale(query, key, None if given == 1.0 else given)


@_attention("own", killers=("scale_multiplies_scores",))
class ScaleLostBesideManyKeys(Attention):
    """The path of more than two blocks of keys has a scale of its own."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return super().scale(query, key, None if key.shape[-2] > 2 * _BLOCK else given)


@_attention("own", killers=("scale_multiplies_scores",))
class ScaleLostWithoutGradients(Attention):
    """The path without gradients forgets the scale."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return super().scale(query, key, given if torch.is_grad_enabled() else None)


class _Product(torch.autograd.Function):
    """Scaled products, whose key's gradient takes the usual scale."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(query, key)
        ctx.scale = scale
        return (query * scale) @ key.mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        query, key = ctx.saved_tensors
        usual = query.shape[-1] ** -0.5
        return grad @ key * ctx.scale, grad.mT @ query * usual, None


@_attention("own", killers=("scale_multiplies_scores",))
class KeyGradientHasTheUsualScale(Attention):
    """The gradient by the key takes 1/√E, whatever the scale."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        found: Tensor = _Product.apply(wide(query), wide(key), scale)  # type: ignore[no-untyped-call]
        return found


class _LastScale(torch.autograd.Function):
    """Scaled products, whose scale is kept where every call keeps its own."""

    kept = 1.0

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(query, key)
        _LastScale.kept = scale
        return (query * scale) @ key.mT

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        query, key = ctx.saved_tensors
        grad = grad * _LastScale.kept
        return grad @ key, grad.mT @ query, None


@_attention("own", killers=("backward_leaves_no_trace",))
class ScaleKeptOnTheClass(Attention):
    """The backward pass takes the scale of the last call, which may be another module's."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        found: Tensor = _LastScale.apply(wide(query), wide(key), scale)  # type: ignore[no-untyped-call]
        return found


@_attention("own", killers=("inputs_are_unchanged",))
class QueryScaledInPlaceWithoutGradients(Attention):
    """Without gradients, the caller's query is scaled in place."""

    def forward(
        self, query: Tensor, *args: Any, scale: float | None = None, **keywords: Any
    ) -> Any:
        if scale is not None and not torch.is_grad_enabled():
            query, scale = query.mul_(scale), 1.0
        return super().forward(query, *args, scale=scale, **keywords)


@_attention("own", killers=("grouped_heads_equal_expanded_heads",))
class PaddingReachesGroups(Attention):
    """With grouped heads, what padding holds as value is multiplied by weights of 0."""

    def forward(self, *args: Any, enable_gqa: bool = False, **keywords: Any) -> Any:
        self.grouped = enable_gqa
        return super().forward(*args, enable_gqa=enable_gqa, **keywords)

    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        return value if self.grouped else super().silence_value(value, allowed)


@_attention("own", killers=("grouped_heads_equal_expanded_heads",))
class GroupsShareTheLongestLength(Attention):
    """With grouped heads, one length for each query becomes the longest of them."""

    def forward(self, *args: Any, enable_gqa: bool = False, **keywords: Any) -> Any:
        lens = keywords.get("valid_lens")
        if enable_gqa and lens is not None and lens.dim() == 2:
            keywords["valid_lens"] = lens.amax(-1)
        return super().forward(*args, enable_gqa=enable_gqa, **keywords)


@_attention("own", killers=("grouped_heads_equal_expanded_heads",))
class GroupsTiledBesideManyKeys(Attention):
    """Beyond a block of keys the heads of key and value are tiled, not repeated."""

    def expand_heads(self, tensor: Tensor, groups: int) -> Tensor:
        if tensor.shape[-2] <= _BLOCK:
            return super().expand_heads(tensor, groups)
        return torch.cat([tensor] * groups, dim=-3)


@_attention("own", killers=("bias_is_added_to_scores",))
class BiasRoundedBesideManyKeys(Attention):
    """Beyond four blocks of keys a floating mask is kept in bfloat16."""

    def mask(self, query: Tensor, key: Tensor, attn_mask: Tensor | None, *rest: Any) -> Any:
        long = key.shape[-2] > 4 * _BLOCK
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


@_attention("own", killers=("valid_lengths_count_the_keys",))
class LengthsInTheQuerysDtype(Attention):
    """Lengths are moved to the dtype of the query: in bfloat16 257 becomes 256."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        return super().lengths(valid_lens.to(query.dtype).long(), query, kv_len)


@_attention("own", killers=("mask_forms_agree",))
class DiagonalHiddenInLaterBlocks(Attention):
    """Beyond two blocks, is_causal keeps a query from its own key."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        allowed = super().causal(q_len, kv_len, device)
        allowed[2 * _BLOCK :] = allowed[2 * _BLOCK :].tril(kv_len - q_len + 2 * _BLOCK - 1)
        return allowed


@_attention("own", killers=("calls_leave_no_trace",))
class MaskKeptInTheCausalOne(Attention):
    """A mask (L, S) is put into the causal one, which is kept from call to call."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self._causal: dict[tuple[int, int], Tensor] = {}

    def mask(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None,
        valid_lens: Tensor | None,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor]:
        plain = attn_mask is not None and attn_mask.dim() == 2 and attn_mask.dtype == torch.bool
        if is_causal and plain:
            causal = self.causal(query.shape[-2], key.shape[-2], query.device)
            assert attn_mask is not None
            causal &= attn_mask
        return super().mask(query, key, attn_mask, valid_lens, is_causal)

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        if (q_len, kv_len) not in self._causal:
            self._causal[q_len, kv_len] = super().causal(q_len, kv_len, device)
        return self._causal[q_len, kv_len]


@_attention("own", killers=("item_alone_equals_item_in_batch",))
class OneMaximumForTheBatch(Attention):
    """The largest score of the batch is taken from all, so that a small item underflows."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        weights = (hidden - hidden.detach().amax()).exp().masked_fill(~allowed, 0.0)
        least = torch.finfo(hidden.dtype).tiny
        return weights / weights.sum(-1, keepdim=True).clamp_min(least)


@_attention("own", killers=("query_alone_equals_query_among_others",))
class LargeCallsAreSharpened(Attention):
    """A path for calls of more than 16384 scores takes another softmax."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        large = scores.shape[-2] * scores.shape[-1] > 16384
        return super().hide(scores * 1.01 if large else scores, allowed)


@_attention("own", killers=("masking_equals_deleting",))
class LastBlockCountsTwice(Attention):
    """Beyond eight blocks of keys the last one is moved back to be full, and overlaps."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        weights = super().normalise(hidden, allowed)
        rest = weights.shape[-1] % _BLOCK
        if weights.shape[-1] <= 8 * _BLOCK or not rest:
            return weights
        twice = torch.ones_like(weights)
        twice[..., -_BLOCK:-rest] = 2.0
        weights = weights * twice
        return weights / weights.sum(-1, keepdim=True).clamp_min(1e-30)


@_attention("own", killers=("training_equals_evaluation",))
class ScaleOnTopInTraining(Attention):
    """In training a scale multiplies the usual one, which it should replace."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        scale = super().scale(query, key, given)
        return scale if given is None or not self.training else scale * query.shape[-1] ** -0.5


@_attention("own", killers=("grouped_heads_equal_expanded_heads",))
class WeightsOfGroupsInAnotherOrder(Attention):
    """With groups the weights handed back have the heads of all groups in turn."""

    def forward(self, query: Tensor, key: Tensor, *args: Any, **keywords: Any) -> Any:
        found = super().forward(query, key, *args, **keywords)
        if not (keywords.get("enable_gqa") and keywords.get("return_weights")):
            return found
        output, weights = found
        return output, weights.unflatten(-3, (key.shape[-3], -1)).transpose(-4, -3).flatten(-4, -3)


@_attention("own", killers=("dropout_is_independent",))
class GroupsDropTheSame(Attention):
    """The heads of a group lose the same weights."""

    groups = 1

    def expand_heads(self, tensor: Tensor, groups: int) -> Tensor:
        self.groups = groups
        return super().expand_heads(tensor, groups)

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        if self.groups == 1 or not self.training:
            return super().drop(weights, dropout_p)
        kept = super().drop(torch.ones_like(weights[..., :: self.groups, :, :]), dropout_p)
        dropped = weights * kept.repeat_interleave(self.groups, dim=-3)
        self.groups = 1
        return dropped


@_attention("own", killers=("query_alone_equals_query_among_others",))
class QueriesShareOneLargest(Attention):
    """Queries are divided by the largest of them all before they meet the keys."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        largest = query.abs().amax().clamp_min(torch.finfo(query.dtype).tiny)
        shown = (query / largest).to(torch.float16).to(query.dtype)
        return super().scores(shown, key, scale) * largest.to(wide(query).dtype)
