"""Mistakes with masks, lengths and causality."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tests.mutants.base import Group, Mutant
from tests.mutants.twins.attention import ATTENTION, Attention
from tests.mutants.twins.distance import DISTANCE, Distance

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)
_distance = Group(DISTANCE, MUTANTS)


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


@_attention("TransformerEngine#1524", killers=("causal_and_padding_combine",))
class CausalDroppedBesideAMask(Attention):
    """Causality is ignored as soon as a mask or lengths are given too."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        is_causal = is_causal and attn_mask is None and valid_lens is None
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("keras#23038", killers=("future_does_not_leak",))
class CausalDroppedWithoutWeights(Attention):
    """The path without weights, meant to be the fast one, forgets causality."""

    def forward(
        self, *args: Any, is_causal: bool = False, return_weights: bool = False, **keywords: Any
    ) -> Any:
        is_causal = is_causal and return_weights
        return super().forward(
            *args, is_causal=is_causal, return_weights=return_weights, **keywords
        )


@_attention("xformers#103", killers=("masked_weights_are_zero",))
class CausalDroppedInHalfPrecision(Attention):
    """The path for half types has no causal branch."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        is_causal = is_causal and query.dtype in (torch.float32, torch.float64)
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention(
    "pytorch#103082",
    "pytorch#108108",
    "cutlass#2336",
    "onnx#8068",
    killers=("decode_equals_prefill",),
)
class CausalTopLeft(Attention):
    """The causal mask is aligned to the top left when L and S differ."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        return torch.ones(q_len, kv_len, dtype=torch.bool, device=device).tril()


@_attention("own", killers=("mask_forms_agree",))
class CausalStrict(Attention):
    """A query does not see its own position, as ``triu`` with its default diagonal hides it."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        return torch.ones(q_len, kv_len, dtype=torch.bool, device=device).triu(kv_len - q_len) == 0


@_attention("own", killers=("future_does_not_leak",))
class CausalSeesOneAhead(Attention):
    """A query sees one key of the future."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        ones = torch.ones(q_len, kv_len, dtype=torch.bool, device=device)
        return ones.tril(kv_len - q_len + 1)


@_attention("own", killers=("mask_forms_agree",))
class CausalOfTheKeysLength(Attention):
    """A causal mask cached for the longest sequence is cut to the wrong corner when L < S."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        size = max(q_len, kv_len)
        return torch.ones(size, size, dtype=torch.bool, device=device).tril()[:q_len, :kv_len]


@_attention("Transformer-Neural-Network#15", killers=("valid_lengths_count_the_keys",))
class LengthOneTooLong(Attention):
    """``<=`` instead of ``<``: the first key of the padding is seen."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        return super().lengths(valid_lens + 1, query, kv_len)


@_attention("own", killers=("valid_lengths_count_the_keys",))
class LengthOneTooShort(Attention):
    """The last valid key is taken for padding."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        return super().lengths((valid_lens - 1).clamp_min(1), query, kv_len)


@_attention("own", killers=("mask_forms_agree",))
class LengthsOfTheFirstQuery(Attention):
    """Of lengths ``(B, L)`` only those of the first query are used."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        lens = valid_lens if valid_lens.dim() == 1 else valid_lens[:, 0]
        return super().lengths(lens, query, kv_len)


@_attention("own", killers=("masked_weights_are_zero",))
class LengthsOverTheLastLeadingSize(Attention):
    """Lengths are laid over the heads where there are as many heads as items."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        inside = super().lengths(valid_lens, query, kv_len)
        sizes = query.shape[:-2]
        return inside.movedim(0, -3) if len(sizes) > 1 and sizes[0] == sizes[-1] else inside


@_attention("own", killers=("causal_and_padding_combine",))
class LengthsIgnoredBesideAMask(Attention):
    """Lengths are used only if causality is not asked for."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        valid_lens = None if is_causal else valid_lens
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


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


@_attention(
    "transformers#39408",
    killers=(
        "masking_equals_deleting",
        "windows_end_at_their_edges",
    ),
)
class RangeOneTooShort(Attention):
    """A mask is read as a range of keys a query, and the last key of a window is left out."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return super().hide(scores, self._without_last(allowed))

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return super().normalise(hidden, self._without_last(allowed))

    def _without_last(self, allowed: Tensor) -> Tensor:
        rest = allowed & (allowed.flip(-1).cumsum(-1).flip(-1) > 1)
        hides = ~allowed.all(-1, keepdim=True) & rest.any(-1, keepdim=True)
        return torch.where(hides, rest, allowed)


@_distance("transformers#29623", killers=("agrees_with_scalar_reference",))
class WindowOneTooLong(Distance):
    """A window of three keys back reaches four."""

    def window(self, distance: Tensor) -> Tensor:
        return distance <= self.before + 1


@_distance("own", killers=("agrees_with_scalar_reference",))
class WindowOneTooShort(Distance):
    """A window of three keys back reaches two."""

    def window(self, distance: Tensor) -> Tensor:
        return distance < self.before


@_distance("own", killers=("agrees_with_scalar_reference",))
class WindowOnTheOtherSide(Distance):
    """The window limits what lies ahead instead of what lies behind."""

    def window(self, distance: Tensor) -> Tensor:
        return -distance <= self.before


@_distance("attention-gym#86", killers=("agrees_with_scalar_reference",))
class DistanceBiasSignFlipped(Distance):
    """The further away a key, the larger its score."""

    def penalty(self, distance: Tensor) -> Tensor:
        return -super().penalty(distance)


@_distance("own", killers=("agrees_with_scalar_reference",))
class DistanceBiasNotSymmetric(Distance):
    """Keys ahead get a bonus: the absolute value is forgotten."""

    def penalty(self, distance: Tensor) -> Tensor:
        return -0.5 * distance


@_distance("TransformerLens#1005", "transformers#22707", killers=("agrees_with_scalar_reference",))
class PositionsCountFromTheEnd(Distance):
    """Positions count from the end of the padded batch, so that padding moves them."""

    def distance(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        return super().distance(q_len, kv_len, device) + (kv_len - q_len)


@_attention("TransformerLens#1005", killers=("masking_equals_deleting",))
class ScaledByPaddedLength(Attention):
    """Scores are divided by the root of the number of keys, padding included."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return super().scale(query, key, given) / (1 + 0.01 * key.shape[-2])


@_attention("pytorch#103749", "pytorch#103963", killers=("empty_rows_give_zeros",))
class EmptyRowGivesNan(Attention):
    """Softmax over -inf alone."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -math.inf)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-1)


@_attention("pytorch#41508", killers=("empty_rows_have_finite_gradients",))
class EmptyRowGivesNanGradients(Attention):
    """The NaN of an empty row is replaced behind softmax, so that its gradient is still NaN."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores + torch.zeros_like(scores).masked_fill(~allowed, -math.inf)


@_attention("apex#1390", "d2l-en#2423", killers=("empty_rows_give_zeros",))
class EmptyRowGivesTheMean(Attention):
    """A row without keys attends to all of them alike."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-1)


@_attention("own", killers=("empty_rows_give_zeros",))
class EmptyRowGivesTheFirstValue(Attention):
    """A row without keys attends to the first."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        dead = ~allowed.any(-1, keepdim=True)
        first = torch.arange(allowed.shape[-1], device=allowed.device) == 0
        return super().normalise(hidden, allowed | (dead & first))


@_attention("pytorch#101967", killers=("masked_slots_are_inert",))
class PoisonLeaksFromKeyAndValue(Attention):
    """What a masked slot holds is multiplied by a weight of 0, which leaves NaN as it is."""

    def silence(self, tensor: Tensor, allowed: Tensor) -> Tensor:
        return tensor


@_attention("pytorch#101967", killers=("masked_slots_are_inert",))
class PoisonLeaksFromValue(Attention):
    """Keys of masked slots are silenced, values are not."""

    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        return value


@_attention("pytorch#101967", killers=("masked_slots_are_inert",))
class PoisonLeaksFromKey(Attention):
    """Values of masked slots are silenced; keys are not, and reach the query's gradient."""

    def silence_key(self, key: Tensor, allowed: Tensor) -> Tensor:
        return key

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().scores(query, key, scale) + 0.0 * key.sum(-1).unsqueeze(-2).sum(-1, True)


@_attention("keras#15390", killers=("hidden_keys_stay_hidden_at_extreme_scores",))
class FiniteFillLeaks(Attention):
    """Hidden scores are -10000, which is no less than real ones can be."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -1e4)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-1) * allowed.any(-1, keepdim=True)


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
