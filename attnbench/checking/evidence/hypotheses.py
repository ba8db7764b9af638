"""Hypotheses: what textbook attention would give if it made a known mistake.

A mistake explains a subject where everything that the subject gets wrong on some small cases is
just what attention with that mistake gives. Each function here gives what its topic's mistakes
would make of one call, by name; a mistake that the call could not show is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnbench.oracle.textbook import Stages, stages_of, textbook_output
from attnbench.subject.tensors import Inputs

__all__ = ["Call", "mistaken"]

Named = Iterator[tuple[str, Tensor]]

_BLOCKS = (8, 16, 32, 40, 48, 64, 80, 96, 128, 160, 256)
_ENDS = (*(2**n for n in range(3, 11)), 100, 127, 255, 1000)


@dataclass(frozen=True)
class Call:
    """One call, and what attention computes on the way to its output.

    Args:
        inputs: of the call.
        stages: as they should be.
        scaled: whether the scores are q·k times a scale, so that those of other inputs are known.
    """

    inputs: Inputs
    stages: Stages
    scaled: bool

    @property
    def lengths(self) -> tuple[int, int]:
        """L and S."""
        q_len, kv_len = self.stages.scores.shape[-2:]
        return q_len, kv_len

    def silenced(self, seen: Tensor) -> Call:
        """The same call with zeros in key and value where no query may see."""
        scores = self.stages.scores.masked_fill(~seen.mT, 0.0) if self.scaled else None
        value = self.stages.value.masked_fill(~seen, 0.0)
        scores = self.stages.scores if scores is None else scores
        return replace(self, stages=self.stages.replace(scores=scores, value=value))

    def masked(self, **changes: Any) -> Tensor:
        """What the same scores give where masks, lengths or causality are others."""
        other = stages_of(self.inputs.replace(**changes))
        return self.stages.replace(allowed=other.allowed, bias=other.bias).output

    def left(self, allowed: Tensor) -> Tensor:
        """What the same scores give where each query may attend to other keys."""
        return self.stages.replace(allowed=allowed.expand(self.stages.allowed.shape)).output

    def scored(self, scores: Tensor) -> Tensor:
        """What other scores give under the same masks."""
        return self.stages.replace(scores=scores).output

    def pooled(self, weights: Tensor) -> Tensor:
        """What other weights give."""
        return weights @ self.stages.finite_value


def mistaken(call: Call) -> Named:
    """What each mistake that a call could show would give, ``(*lead, L, Ev)``, by its name.

    Slots that no query may see are tried as they are, and as zeros, which some code makes of them
    before anything else.
    """
    seen = call.stages.allowed.any(-2).unsqueeze(-1)
    for one in (call,) if bool(seen.all()) else (call, call.silenced(seen)):
        for topic in _TOPICS:
            yield from topic(one)


def _masks(call: Call) -> Named:
    mask = call.inputs.attn_mask
    if mask is None:
        return
    yield "mask_ignored", call.masked(attn_mask=None)
    if mask.dtype == torch.bool:
        yield "mask_inverted", call.masked(attn_mask=~mask)
        yield "mask_added", call.masked(attn_mask=mask.double())
        yield "mask_scores_zeroed", _zeroed(call, mask)
    else:
        hidden = mask == -math.inf
        yield "bias_ignored", call.masked(attn_mask=~hidden)
        yield "bias_subtracted", call.masked(attn_mask=(-mask).masked_fill(hidden, -math.inf))
        scale = call.inputs.query.shape[-1] ** -0.5
        yield "bias_scaled", call.masked(attn_mask=mask * scale)
        yield "bias_clipped", call.masked(attn_mask=mask.clamp_min(-5.0))
        if hidden.any():
            yield "bias_hides_nothing", call.masked(attn_mask=mask.masked_fill(hidden, 0.0))


def _all_masks(call: Call) -> Named:
    """Masks, lengths and causality alike."""
    allowed = call.stages.allowed
    if not bool(allowed.all()):
        every = call.stages.replace(allowed=torch.ones_like(allowed))
        yield "all_masks_ignored", every.output
        yield "mask_after_softmax", call.pooled(every.weights * allowed)


def _zeroed(call: Call, mask: Tensor) -> Tensor:
    """Hidden scores are 0, as a mask that is multiplied in leaves them."""
    rest = stages_of(call.inputs.replace(attn_mask=None))
    scores = call.stages.scores * mask.cpu()
    return call.stages.replace(scores=scores, allowed=rest.allowed, bias=rest.bias).output


def _places(call: Call) -> Named:
    """Masks laid over other items, heads, queries or keys."""
    allowed, (q_len, kv_len) = call.stages.allowed, call.lengths
    inputs = call.inputs
    if bool(allowed.all()) or (inputs.attn_mask is None and inputs.valid_lens is None):
        return
    what = "lengths" if inputs.attn_mask is None else "mask"
    yield f"{what}_laid_of_first_query", call.left(allowed[..., :1, :])
    yield f"{what}_laid_of_last_query", call.left(allowed[..., -1:, :])
    yield f"{what}_laid_of_any_query", call.left(allowed.any(-2, keepdim=True))
    if q_len == kv_len:
        yield f"{what}_laid_transposed", call.left(allowed.mT)
        yield f"{what}_laid_of_keys_for_queries", call.left(allowed[..., :1, :].mT)
    for axis in range(allowed.dim() - 2):
        yield f"{what}_laid_of_first_item", call.left(allowed.narrow(axis, 0, 1))
    if allowed.dim() == 3 and allowed.shape[0] == q_len:
        yield f"{what}_laid_of_items_for_queries", call.left(allowed.transpose(0, 1))
    if allowed.dim() == 4:
        items, heads = allowed.shape[:2]
        tiled = allowed.flatten(0, 1)[torch.arange(items * heads) % items * heads]
        yield f"{what}_laid_tiled_over_heads", call.left(tiled.reshape(allowed.shape))
        first = torch.arange(heads).reshape(-1, 1, 1) == 0
        yield f"{what}_laid_of_first_head", call.left(allowed | ~first)
        if items == heads:
            yield f"{what}_laid_of_items_for_heads", call.left(allowed.transpose(0, 1))


def _causality(call: Call) -> Named:
    inputs, (q_len, kv_len) = call.inputs, call.lengths
    if not inputs.is_causal:
        return
    rest = stages_of(inputs.replace(is_causal=False, causal="bottom_right")).allowed
    ones, shift = torch.ones(q_len, kv_len, dtype=torch.bool), kv_len - q_len
    beside = inputs.attn_mask is not None or inputs.valid_lens is not None
    yield ("causality_lost_beside_a_mask" if beside else "causality_ignored"), call.left(rest)
    diagonals = {"top_left": 0, "bottom_right": shift, "of_the_lengths_difference": -shift}
    for name, diagonal in diagonals.items():
        if inputs.causal != name:
            yield f"causality_{name}", call.left(rest & ones.tril(diagonal))
    right = 0 if inputs.causal == "top_left" else shift
    yield "causality_strict", call.left(rest & ones.tril(right - 1))
    yield "causality_one_ahead", call.left(rest & ones.tril(right + 1))
    yield "causality_reversed", call.left(rest & ones.triu(right))
    if inputs.attn_mask is not None:
        yield "mask_lost_beside_causality", call.masked(attn_mask=None)


def _lengths(call: Call) -> Named:
    lens, kv_len = call.inputs.valid_lens, call.lengths[1]
    if lens is None:
        return
    wide = lens.long()
    beside = call.inputs.is_causal or call.inputs.attn_mask is not None
    yield (
        ("lengths_lost_beside_a_mask" if beside else "lengths_ignored"),
        call.masked(valid_lens=None),
    )
    yield "length_one_too_long", call.masked(valid_lens=(wide + 1).clamp_max(kv_len))
    yield "length_one_too_short", call.masked(valid_lens=wide - 1)
    yield "lengths_counted_from_the_end", call.left(_from_the_end(call, wide))
    if lens.dim() == 2:
        for name, one in {
            "first": wide[:, :1],
            "last": wide[:, -1:],
            "longest": wide.amax(-1, keepdim=True),
        }.items():
            yield f"lengths_of_{name}_query", call.masked(valid_lens=one.expand_as(wide))


def _from_the_end(call: Call, lens: Tensor) -> Tensor:
    rest = stages_of(call.inputs.replace(valid_lens=None)).allowed
    kept = stages_of(call.inputs.replace(is_causal=False, attn_mask=None)).allowed
    return rest & kept.flip(-1)


def _rows(call: Call) -> Named:
    dead = ~call.stages.allowed.any(-1, keepdim=True)
    if not bool(dead.any()):
        return
    value, right = call.stages.value, call.stages.output
    fills = {
        "nan": torch.full_like(right, math.nan),
        "mean": value.mean(-2, keepdim=True),
        "first_value": value[..., :1, :],
        "unmasked": stages_of(
            call.inputs.replace(attn_mask=None, valid_lens=None, is_causal=False)
        ).output
        if call.scaled
        else right,
    }
    for name, fill in fills.items():
        yield f"empty_rows_{name}", torch.where(dead, fill, right)


def _keys(call: Call) -> Named:
    kv_len = call.lengths[1]
    slots, allowed = torch.arange(kv_len), call.stages.allowed
    ends = {f"keys_lost_beyond_{end}": end for end in _ENDS}
    ends |= {f"keys_lost_after_blocks_{block}": kv_len // block * block for block in _BLOCKS}
    for name, end in {**ends, "last_key_lost": kv_len - 1}.items():
        if 0 < end < kv_len:
            yield name, call.left(allowed & (slots < end))
    yield "first_key_lost", call.left(allowed & (slots > 0))
    last = (allowed * (slots + 1)).amax(-1, keepdim=True) - 1
    alone = allowed.sum(-1, keepdim=True) < 2
    yield "last_open_key_lost", call.left(allowed & ((slots != last) | alone))


def _axes(call: Call) -> Named:
    stages = call.stages
    scores = (stages.scores + stages.bias).masked_fill(~stages.allowed, -math.inf)
    for axis in range(scores.dim() - 1):
        weights = scores.softmax(axis).nan_to_num(0.0).masked_fill(~stages.allowed, 0.0)
        yield f"softmax_over_dimension_{axis}", call.pooled(weights)
        if axis == scores.dim() - 2:
            yield "softmax_over_the_queries", call.pooled(weights)


def _softmax(call: Call) -> Named:
    stages = call.stages
    weights = stages.weights
    scores = (stages.scores + stages.bias).masked_fill(~stages.allowed, -math.inf)
    top = scores.amax(-1, keepdim=True)
    top = top.masked_fill(top == -math.inf, 0.0)
    powers = (scores - top).exp()
    yield "softmax_twice", stages.replace(scores=weights, bias=stages.bias * 0).output
    yield (
        "softmax_of_base_two",
        stages.replace(scores=stages.scores * math.log(2), bias=stages.bias * math.log(2)).output,
    )
    yield "softmax_with_a_sink", call.pooled(powers / (powers.sum(-1, keepdim=True) + (-top).exp()))
    yield "softmax_with_a_sink", call.pooled(powers / (powers.sum(-1, keepdim=True) + 1))
    for epsilon in (1e-2, 1e-3):
        yield "softmax_with_epsilon", call.pooled(powers / (powers.sum(-1, keepdim=True) + epsilon))
    yield "weights_not_normalised", call.pooled(powers)
    logs = (weights.clamp_min(1e-300)).log().masked_fill(~stages.allowed, 0.0)
    yield "softmax_is_log_softmax", call.pooled(logs)


def _scores(call: Call) -> Named:
    right, (q_len, kv_len) = call.stages.scores, call.lengths
    size = call.inputs.query.shape[-1]
    yield "scores_negative", call.scored(-right)
    yield "scores_absolute", call.scored(right.abs())
    if q_len == kv_len > 1:
        yield "scores_transposed", call.scored(right.mT)
        yield "scores_symmetrised", call.scored((right + right.mT) / 2)
    for limit in (5.0, 10.0, 50.0):
        yield "scores_clipped", call.scored(right.clamp(-limit, limit))
    if not call.scaled or call.inputs.scale is not None:
        return
    root = math.sqrt(size)
    factors = {
        "scale_missing": root,
        "scale_applied_twice": 1 / root,
        "scale_zero": 0.0,
        "scale_of_the_queries": root / math.sqrt(q_len),
        "scale_of_the_keys": root / math.sqrt(kv_len),
        "scale_of_a_padded_size": root / math.sqrt(-(-size // 8) * 8),
        "scale_of_the_value": root / math.sqrt(call.inputs.value.shape[-1]),
    }
    for name, factor in factors.items():
        yield name, call.scored(right * factor)
    weights = call.stages.weights / root
    yield "scale_after_softmax", call.pooled(weights)


def _scale(call: Call) -> Named:
    given, usual = call.inputs.scale, call.inputs.query.shape[-1] ** -0.5
    if not call.scaled or given is None:
        return
    others = {
        "scale_argument_ignored": usual,
        "scale_argument_on_top": given * usual,
        "scale_argument_absolute": abs(given),
        "scale_argument_divides": 1 / given if given else 1.0,
    }
    for name, scale in others.items():
        beside_groups = "_for_groups" if call.inputs.enable_gqa else ""
        yield name + beside_groups, textbook_output(call.inputs.replace(scale=scale))


def _values(call: Call) -> Named:
    value, weights = call.stages.value, call.stages.weights
    if call.scaled and call.inputs.key.shape == value.shape:  # for groups, the values are expanded
        yield "keys_pooled", weights @ call.inputs.key.cpu().double()
    yield "values_reversed", weights @ value.flip(-2)
    if value.dim() > 2 and value.shape[0] > 1:
        yield "values_of_another_item", weights @ value.roll(1, 0)
        yield "values_of_first_item", weights @ value[:1]


def _groups(call: Call) -> Named:
    inputs = call.inputs
    if not inputs.enable_gqa or not call.scaled:
        return
    count, own = inputs.query.shape[-3], inputs.key.shape[-3]
    orders = {"tiled": torch.arange(count) % own, "of_the_first": torch.zeros(count).long()}
    for name, order in orders.items():
        key, value = (t.index_select(-3, order) for t in (inputs.key, inputs.value))
        other = inputs.replace(key=key, value=value, enable_gqa=False)
        yield f"groups_{name}", textbook_output(other)


_TOPICS: tuple[Callable[[Call], Named], ...] = (
    _masks,
    _all_masks,
    _places,
    _causality,
    _lengths,
    _rows,
    _keys,
    _axes,
    _softmax,
    _scores,
    _scale,
    _values,
    _groups,
)
