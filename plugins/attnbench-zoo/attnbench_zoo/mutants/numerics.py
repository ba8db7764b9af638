"""Mistakes with softmax, precision and pooling."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench_zoo.base import Group, Mutant, Twin
from attnbench_zoo.twins.attention import ATTENTION, Attention, wide

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)
_HALF = (torch.float16, torch.bfloat16)


@_attention("fairseq#3575", "flax#982", killers=("weights_sum_to_one",))
class FillOverflowsHalfPrecision(Attention):
    """The fill value -1e9 is -inf in float16, and 0 times it is NaN."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        half = scores.to(self.dtype) + (~allowed).to(self.dtype) * torch.tensor(-1e9).to(self.dtype)
        return half.to(scores.dtype)

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        self.dtype = query.dtype
        return super().scores(query, key, scale)


@_attention("mlc-llm#1638", killers=("agrees_with_float64",))
class ProductOverflowsBeforeScaling(Attention):
    """The product is made in the dtype of the query, and scaled after."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return wide((query @ key.mT) * scale)


@_attention("transformers#18057", killers=("weights_sum_to_one",))
class SoftmaxInHalfPrecision(Attention):
    """Softmax exponentiates in half precision, without subtracting the largest score."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        raw = hidden.half().exp().masked_fill(~allowed, 0.0)
        return (raw / raw.sum(-1, keepdim=True)).nan_to_num(posinf=math.nan).to(hidden.dtype)


@_attention("pytorch#163588", killers=("agrees_with_scalar_reference",))
class LessPreciseWithAMask(Attention):
    """With a mask, scores of half types are rounded to eighths, as for a path of small integers."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        rounded = (scores * 8).round() / 8
        return super().hide(torch.where(allowed.all() | ~self.rounds, scores, rounded), allowed)

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        self.rounds = torch.tensor(query.dtype in _HALF)
        return super().scores(query, key, scale)


@_attention(
    "PyTorch-NLP#2",
    killers=(
        "weights_sum_to_one",
        "query_alone_equals_query_among_others",
    ),
)
class SoftmaxOverQueries(Attention):
    """Softmax runs over the queries."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-2).nan_to_num().masked_fill(~allowed, 0.0)


@_attention("fastNLP#254", killers=("weights_sum_to_one",))
class SoftmaxOverDimensionTwo(Attention):
    """Softmax runs over dimension 2, right for three dimensions and wrong for four."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        dim = 2 if hidden.dim() > 2 else -1
        return hidden.softmax(dim).nan_to_num().masked_fill(~allowed, 0.0)


@_attention("own", killers=("weights_sum_to_one",))
class EpsilonInTheNormaliser(Attention):
    """1e-2 is added to the sum that softmax divides by."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        raw = (hidden - hidden.amax(-1, keepdim=True)).exp().masked_fill(~allowed, 0.0)
        return raw / (raw.sum(-1, keepdim=True) + 1e-2)


@_attention("own", killers=("weights_sum_to_one",))
class OneAddedToTheNormaliser(Attention):
    """Softmax with a sink: 1 is added to the sum that it divides by."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        top = hidden.amax(-1, keepdim=True).clamp_min(0.0)
        raw = (hidden - top).exp().masked_fill(~allowed, 0.0)
        return raw / (raw.sum(-1, keepdim=True) + (-top).exp())


@_attention("own", killers=("query_alone_equals_query_among_others",))
class MaximumOfAllQueries(Attention):
    """The largest score of all queries is subtracted, so that other rows underflow to 0 / 0."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        top = hidden.amax((-2, -1), keepdim=True)
        raw = (hidden - top).exp().masked_fill(~allowed, 0.0)
        return raw / raw.sum(-1, keepdim=True).clamp_min(1e-30)


@_attention("own", killers=("finite_at_extremes",))
class MaximumNotSubtracted(Attention):
    """Softmax is written out without subtracting the largest score."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        raw = hidden.exp().masked_fill(~allowed, 0.0)
        return raw / raw.sum(-1, keepdim=True).masked_fill(~allowed.any(-1, keepdim=True), 1.0)


@_attention("own", killers=("weights_sum_to_one",))
class WeightsClipped(Attention):
    """Weights below 0.001 are set to 0."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        weights = super().normalise(hidden, allowed)
        return weights.masked_fill(weights < 1e-3, 0.0)


@_attention("own", killers=("agrees_with_scalar_reference",))
class ScoresClipped(Attention):
    """Scores are clipped to ± 10, against overflow."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return super().hide(scores.clamp(-10, 10), allowed)


@_attention("own", killers=("agrees_with_scalar_reference",))
class ScoresDoubledInLongRows(Attention):
    """Scores are doubled for rows of more than 64 keys."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().scores(query, key, 2 * scale if key.shape[-2] > 64 else scale)


@_attention("own", killers=("weights_sum_to_one",))
class LogSoftmax(Attention):
    """Log-softmax for softmax."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.log_softmax(-1).masked_fill(~allowed, 0.0)


@_attention("own", killers=("agrees_with_scalar_reference",))
class SoftmaxTwice(Attention):
    """The weights are softmaxed once more."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        twice = super().normalise(hidden, allowed)
        return super().normalise(self.hide(twice, allowed), allowed)


@_attention("own", killers=("agrees_with_scalar_reference",))
class BaseTwoSoftmax(Attention):
    """exp2 for exp, without the factor log2 e in the scale."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return super().normalise(hidden * math.log(2), allowed)


@_attention("own", killers=("agrees_with_scalar_reference",))
class NegativeScores(Attention):
    """The sign of the scores is flipped."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return -super().scale(query, key, given)


@_attention("own", killers=("agrees_with_scalar_reference",))
class Float32ForFloat64(Attention):
    """Everything is computed in float32."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().scores(query.float(), key.float(), scale).to(wide(query).dtype)


@_attention("own", killers=("output_has_shape_and_dtype",))
class OutputStaysWide(Attention):
    """The output of half types comes in float32."""

    def forward(self, query: Tensor, *args: Any, **keywords: Any) -> Any:
        result = super().forward(query, *args, **keywords)
        return tuple(wide(t) for t in result) if isinstance(result, tuple) else wide(result)


@_attention("seen in review", killers=("output_lies_within_values",))
class KeyAndValueSwapped(Attention):
    """Where their sizes agree, the keys are pooled."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        self.key = key
        return super().scores(query, key, scale)

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        fits = self.key.shape[-1] == value.shape[-1]
        return super().pool(weights, self.key if fits else value)


@_attention("seen in review", killers=("every_attendable_key_matters",))
class LastKeyDropped(Attention):
    """The last key of a row of several is never attended to."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return super().hide(scores, self._dropped(allowed))

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return super().normalise(hidden, self._dropped(allowed))

    def _dropped(self, allowed: Tensor) -> Tensor:
        rest = allowed.clone()
        rest[..., -1] = False
        return torch.where(rest.any(-1, keepdim=True), rest, allowed)


@_attention("own", killers=("agrees_with_scalar_reference",))
class WrongFromSize129(Attention):
    """Keys beyond the 128th are not read: a block size is taken for the length."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        near = torch.arange(scores.shape[-1], device=scores.device) < 128
        return super().hide(scores, allowed & near)


@_attention("own", killers=("masked_slots_are_inert",))
class WrongWhereLengthsAgree(Attention):
    """Where L equals S, scores are symmetrised, as for self-attention they were thought to be."""

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        square = scores.shape[-1] == scores.shape[-2]
        return super().hide((scores + scores.mT) / 2 if square else scores, allowed)


@_attention("own", killers=("output_lies_within_values",))
class ValueWithoutLastFeature(Attention):
    """The last feature of a wide value is zero: its size is rounded down to a multiple of 16."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        kept = value.shape[-1] // 16 * 16 or value.shape[-1]
        inside = torch.arange(value.shape[-1], device=value.device) < kept
        output: Tensor = super().pool(weights, value) * inside
        return output


@_attention("own", killers=("agrees_with_scalar_reference",))
class KeyFeaturesBeyond256Dropped(Attention):
    """Features beyond the 256th do not enter the score."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().scores(query[..., :256], key[..., :256], scale)


@_attention("own", killers=("output_is_linear_in_values",))
class ValueNormalised(Attention):
    """Values are divided by their norm."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, torch.nn.functional.normalize(wide(value), dim=-1))


@_attention("own", killers=("output_is_linear_in_values",))
class ConstantAddedToTheOutput(Attention):
    """A constant of 0.01 is added to the output."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, value) + 0.01


@_attention("own", killers=("item_alone_equals_item_in_batch",))
class OneMaximumForTheBatch(Attention):
    """The largest score of the batch is taken from all, so that a small item underflows."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        weights = (hidden - hidden.detach().amax()).exp().masked_fill(~allowed, 0.0)
        least = torch.finfo(hidden.dtype).tiny
        return weights / weights.sum(-1, keepdim=True).clamp_min(least)


@_attention("own", killers=("query_alone_equals_query_among_others",))
class QueriesShareOneLargest(Attention):
    """Queries are divided by the largest of them all before they meet the keys."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        largest = query.abs().amax().clamp_min(torch.finfo(query.dtype).tiny)
        shown = (query / largest).to(torch.float16).to(query.dtype)
        return super().scores(shown, key, scale) * largest.to(wide(query).dtype)


class _Quiet(Attention):
    """A further key scores 0 and has no value."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        hidden = hidden.masked_fill(~allowed, -math.inf)
        top = hidden.amax(-1, keepdim=True).clamp_min(0.0)
        raw = (hidden - top).exp()
        return raw / (raw.sum(-1, keepdim=True) + (-top).exp())


_quiet = Group(
    Twin(
        "quiet",
        replace(
            ATTENTION.spec,
            name="quiet",
            make=_Quiet,
            reference=None,
            conventions={"extra_keys": 1},
            accepts=("is_causal",),
        ),
    ),
    MUTANTS,
)


@_quiet("own", killers=("weights_sum_to_one",))
class FurtherKeyIsNotShifted(_Quiet):
    """Scores are shifted by their largest, and the further key's weight stays 1."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        hidden = hidden.masked_fill(~allowed, -math.inf)
        raw = (hidden - hidden.amax(-1, keepdim=True).nan_to_num(neginf=0.0)).exp()
        return raw / (raw.sum(-1, keepdim=True) + 1)
