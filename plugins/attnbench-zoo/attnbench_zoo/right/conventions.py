"""Right attentions that follow other conventions than the default, each with what it declares."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import MechanismSpec
from attnbench_zoo.right.attention import ATTENTION, Attention

__all__ = ["FOLLOWING", "Following"]


class EmptyRowsGiveTheMean(Attention):
    """A row without keys attends to all of them alike."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-1)

    def silence(self, tensor: Tensor, allowed: Tensor) -> Tensor:
        some = allowed.any(-1).all(-1)[..., None, None]  # an empty row reads every value
        return torch.where(some, super().silence(tensor, allowed), tensor)


class EmptyRowsGiveNan(Attention):
    """Softmax over -inf alone."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -math.inf)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-1)


class EmptyRowsAreRefused(Attention):
    """A row without keys raises."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        if not bool(allowed.any(-1).all()):
            raise ValueError("a query has no key")
        return super().hide(scores, allowed)


class HiddenSlotsAreFinite(Attention):
    """What hidden slots hold is multiplied by a weight of 0."""

    def silence(self, tensor: Tensor, allowed: Tensor) -> Tensor:
        return tensor


class _OneForm(nn.Module):
    """Attention in plain functions, with a mask of one form."""

    form = "boolean"

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.inner = Attention(*sizes)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, **given: Any
    ) -> Any:
        self.look(attn_mask)
        return self.inner(query, key, value, attn_mask, **given)

    def look(self, mask: Tensor | None) -> None:
        """Raise for a mask of another form."""
        if mask is not None and (mask.dtype == torch.bool) != (self.form == "boolean"):
            raise TypeError(f"only {self.form} masks")


class TakesBooleanMasks(_OneForm):
    """Floating masks raise."""


class TakesFloatingMasks(_OneForm):
    """Boolean masks raise."""

    form = "floating"


class TakesNoMasks(_OneForm):
    """Any mask raises."""

    def look(self, mask: Tensor | None) -> None:
        if mask is not None:
            raise TypeError("no masks")


class TakesOneRowForAllQueries(_OneForm):
    """A mask that may differ by query raises."""

    def look(self, mask: Tensor | None) -> None:
        if mask is not None and (mask.shape[-2] != 1 or mask.dtype != torch.bool):
            raise ValueError("one row of booleans for all queries")


class FillsWithAFiniteNumber(Attention):
    """Hidden scores are -1e9, and -1e9 in a floating mask hides."""

    def mask(self, query: Tensor, key: Tensor, attn_mask: Any, *rest: Any) -> Any:
        if attn_mask is not None and attn_mask.is_floating_point():
            low = max(-1e9, torch.finfo(attn_mask.dtype).min)
            attn_mask = attn_mask.masked_fill(attn_mask <= low, -math.inf)
        return super().mask(query, key, attn_mask, *rest)

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -1e9)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-1) * allowed.any(-1, keepdim=True)


class AddsAFiniteMask(Attention):
    """A floating mask is added as it is, whatever it holds."""

    def mask(self, query: Tensor, key: Tensor, attn_mask: Any, *rest: Any) -> Any:
        allowed, _ = super().mask(query, key, None, *rest)
        bias = torch.zeros((), dtype=query.dtype) if attn_mask is None else attn_mask
        return allowed, bias.double() if query.dtype == torch.float64 else bias.float()

    def silence(self, tensor: Tensor, allowed: Tensor) -> Tensor:
        return tensor


class ComputesInFloat32(Attention):
    """Whatever it is given, it computes in float32."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, **given: Any
    ) -> Any:
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.float()
        found = super().forward(query.float(), key.float(), value.float(), attn_mask, **given)
        if isinstance(found, tuple):
            return found[0].to(query.dtype), found[1].to(query.dtype)
        return found.to(query.dtype)


class HasNoGradients(Attention):
    """Its output has no graph."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, value).detach()


class AlignsToTheTopLeft(Attention):
    """Query i sees keys up to i."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        return torch.ones(q_len, kv_len, dtype=torch.bool, device=device).tril()


class IsCausalForSquares(Attention):
    """Causality where L is not S raises."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        if q_len != kv_len:
            raise ValueError("is_causal is for L = S")
        return super().causal(q_len, kv_len, device)


class IsAlwaysCausal(Attention):
    """The future is hidden whatever is asked."""

    def mask(self, query: Tensor, key: Tensor, attn_mask: Any, lens: Any, is_causal: Any) -> Any:
        return super().mask(query, key, attn_mask, lens, True)


class BiasesByDistance(Attention):
    """A score loses half for each step from key to query, the last ones aligned."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        rows = torch.arange(query.shape[-2]).unsqueeze(-1) + key.shape[-2] - query.shape[-2]
        distance = (rows - torch.arange(key.shape[-2])).abs()
        return super().scores(query, key, scale) - 0.5 * distance


class AddsPositions(Attention):
    """A sinusoid of its place is added to each key."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        place = torch.arange(key.shape[-2], dtype=torch.float64).sin().unsqueeze(-1)
        return super().scores(query, key + place.to(key.dtype), scale)


class AddsAKeyOfZeros(Attention):
    """One more key and value, of zeros."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        own = torch.zeros_like(hidden[..., :1])
        hidden = hidden.masked_fill(~allowed, -math.inf)
        return torch.cat([hidden, own], -1).softmax(-1)

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights[..., :-1], value)


class SlopesByHead(Attention):
    """Each head scales its scores by its place."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        found = super().scores(query, key, scale)
        heads = query.shape[-3] if query.dim() > 2 else 1
        slopes = 1 / torch.arange(1, heads + 1, dtype=found.dtype)
        return found * (slopes[:, None, None] if query.dim() > 2 else slopes[0])


@dataclass(frozen=True)
class Following:
    """A right attention that follows other conventions.

    Args:
        spec: as it declares itself.
        told_by: the invariant that fails where it declares nothing.
    """

    spec: MechanismSpec = field(repr=False)
    told_by: str


def _following(cls: type, told_by: str, conventions: dict[str, Any], **fields: Any) -> Following:
    twin = ATTENTION.spec
    assert isinstance(twin, MechanismSpec)
    given: dict[str, Any] = {
        "formula": twin.formula,
        "equal_sizes": True,
        "reference": twin.reference,
        "accepts": twin.accepts,
        "laws": twin.laws,
        **fields,
    }
    spec = MechanismSpec(name=cls.__name__, make=cls, conventions=conventions, **given)
    return Following(spec, told_by)


_LOW = float(torch.finfo(torch.float32).min)
_EAGER = dict.fromkeys(
    ("fake_tensors_tell_the_shape", "vmap_equals_batch"),
    "it looks at the values of its mask",
)
_NO_REFERENCE: dict[str, Any] = {"reference": None}
_FEW = ("is_causal", "dropout_p", "scale", "enable_gqa", "return_weights")
_NO_SCALE = tuple(flag for flag in ATTENTION.spec.accepts if flag != "scale")

FOLLOWING = [
    _following(EmptyRowsGiveTheMean, "empty_rows_give_zeros", {"empty_rows": "mean"}),
    _following(EmptyRowsGiveNan, "empty_rows_give_zeros", {"empty_rows": "nan"}),
    _following(
        EmptyRowsAreRefused, "empty_rows_give_zeros", {"empty_rows": "refused"}, exempt=_EAGER
    ),
    _following(HiddenSlotsAreFinite, "hidden_slots_may_hold_nan", {"hidden_slots": "finite"}),
    _following(TakesBooleanMasks, "mask_forms_agree", {"masks": ("boolean", "lengths")}),
    _following(
        TakesFloatingMasks,
        "keeps_the_contract",
        {"masks": ("floating", "lengths"), "hidden_slots": "finite"},
    ),
    _following(TakesNoMasks, "keeps_the_contract", {"masks": ()}, accepts=_FEW),
    _following(
        TakesOneRowForAllQueries, "keeps_the_contract", {"masks": ("boolean", "keys")}, accepts=_FEW
    ),
    _following(
        FillsWithAFiniteNumber, "hidden_keys_stay_hidden_at_extreme_scores", {"mask_value": -1e9}
    ),
    _following(
        AddsAFiniteMask,
        "masked_weights_are_zero",
        {"masks": "floating", "mask_value": _LOW, "empty_rows": "mean", "hidden_slots": "finite"},
        accepts=("dropout_p", "scale", "enable_gqa", "return_weights"),
        dtypes=("float32", "float64"),
    ),
    _following(ComputesInFloat32, "agrees_with_scalar_reference", {"internal_dtype": "float32"}),
    _following(HasNoGradients, "gradients_are_right", {"gradients": False}),
    _following(AlignsToTheTopLeft, "mask_forms_agree", {"causal": "top_left"}),
    _following(IsCausalForSquares, "decode_equals_prefill", {"causal": "square"}),
    _following(IsAlwaysCausal, "keys_permute_freely", {"causal": "always"}),
    _following(
        BiasesByDistance,
        "keys_permute_freely",
        {"positions": "relative"},
        **_NO_REFERENCE,
        accepts=_NO_SCALE,
    ),
    _following(AddsPositions, "keys_permute_freely", {"positions": "absolute"}, **_NO_REFERENCE),
    _following(AddsAKeyOfZeros, "weights_sum_to_one", {"extra_keys": 1}, **_NO_REFERENCE),
    _following(
        SlopesByHead, "leading_sizes_fold", {"per_head": True}, **_NO_REFERENCE, accepts=_NO_SCALE
    ),
]
"""Each passes as it declares itself; without its conventions it does not."""
