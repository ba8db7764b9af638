"""What is wrong where no known mistake gives the output, told by the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attnbench_zoo.mutants import MUTANTS
from torch import Tensor
from torch.nn.functional import normalize

import attnbench
from attnbench.adapters import flash, sdpa
from attnbench.checking.cause.witnesses import explanations, tally
from attnbench.subject.lookup import resolve

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def softmax(scores: Tensor) -> Tensor:
    return scores.softmax(-1).nan_to_num(0.0)


def attention(
    change: Callable[[Tensor], Tensor] = lambda scores: scores,
    weigh: Callable[[Tensor], Tensor] = softmax,
    change_value: Callable[[Tensor], Tensor] = lambda value: value,
    change_mask: Callable[[Tensor], Tensor] = lambda mask: mask,
) -> Any:
    """Scaled dot products, with one stage replaced."""

    def attend(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        scores = change((query * query.shape[-1] ** -0.5) @ key.mT)
        if attn_mask is not None:
            mask = change_mask(attn_mask)
            hides = mask.dtype == torch.bool
            scores = scores.masked_fill(~mask, -torch.inf) if hides else scores + mask
        return weigh(scores) @ change_value(value)

    return attend


def numbers(scores: Tensor) -> Tensor:
    return torch.arange(scores.shape[-1]).to(scores)


def by_distance(scores: Tensor) -> Tensor:
    queries = torch.arange(scores.shape[-2])[:, None] + scores.shape[-1] - scores.shape[-2]
    return scores - 0.1 * (queries - torch.arange(scores.shape[-1])).abs()


def powers(scores: Tensor) -> Tensor:
    top = scores.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
    return (scores - top).exp()


def of_halves(merge: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The weights of two halves of the keys, merged by shares that are made of their scores."""

    def weigh(scores: Tensor) -> Tensor:
        parts = scores.tensor_split(2, -1) if scores.shape[-1] > 1 else (scores,)
        shares = torch.stack([merge(part) for part in parts])
        shares = shares / shares.sum(0).masked_fill(shares.sum(0) == 0, 1.0)
        pairs = zip(shares, parts, strict=True)
        return torch.cat([share * softmax(part) for share, part in pairs], -1)

    return weigh


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (attention(), None),
        (attention(lambda scores: scores + (numbers(scores) == 0)), "order_of_keys"),
        (attention(lambda scores: 1.1 * scores), "scale"),
        (attention(by_distance), "positions"),
        (attention(lambda scores: scores + 0.3 * scores.sin()), "scores_formula"),
        (attention(weigh=lambda s: 1.02 * softmax(s)), "rows_do_not_sum_to_one"),
        (attention(change_value=lambda value: normalize(value, dim=-1)), "value_wrong"),
        (
            attention(
                change_value=lambda value: value.mT if value.mT.shape == value.shape else value
            ),
            "value_wrong",
        ),
        (attention(change_mask=lambda mask: mask.roll(1, -2)), "mask_misplaced"),
        (
            attention(
                change_mask=lambda mask: mask if mask.dtype == torch.bool else mask.bfloat16()
            ),
            "floating_mask",
        ),
        (
            attention(change_mask=lambda mask: mask if mask.dtype == torch.bool else mask / 2),
            "floating_mask",
        ),
        (
            attention(weigh=of_halves(lambda part: part.isfinite().sum(-1, keepdim=True))),
            "rescaling",
        ),
        (
            attention(weigh=of_halves(lambda part: part.amax(-1, keepdim=True).exp())),
            "rescaling",
        ),
    ],
)
def test_what_deviates_is_named(function: Any, cause: str | None) -> None:
    names = ["agrees_with_scalar_reference", "keys_permute_freely", "bias_is_added_to_scores"]
    report = attnbench.check(sdpa(function, name="one"), profile="quick", invariants=names)
    causes = {o.failure.cause for o in report.outcomes if o.failure is not None}
    assert causes - {None} == ({cause} if cause else set())


def maximum(scores: Tensor, axes: tuple[int, ...]) -> Tensor:
    top = scores.masked_fill(scores.isneginf(), -1e4).amax(axes, keepdim=True)
    found = (scores - top).exp()
    total = found.sum(-1, keepdim=True)
    return found / total.masked_fill(total == 0, 1.0)


def without_size(scores: Tensor) -> Tensor:
    """The weights if the largest size of a score is subtracted, and not the largest score."""
    found = (scores - scores.nan_to_num(neginf=0.0).abs().amax(-1, keepdim=True)).exp()
    total = found.sum(-1, keepdim=True)
    return found / total.masked_fill(total == 0, 1.0)


@pytest.mark.parametrize(
    ("weigh", "mistake"),
    [
        (lambda scores: scores.exp() / scores.exp().sum(-1, keepdim=True), "powers_overflow"),
        (lambda scores: maximum(scores, (-2, -1)), "maximum_of_other_rows"),
        (lambda scores: maximum(scores, (*range(scores.dim()),)), "maximum_of_other_rows"),
        (lambda scores: without_size(scores), "low_scores_lost"),
    ],
)
def test_a_maximum_that_is_missing_or_of_other_rows_is_named(weigh: Any, mistake: str) -> None:
    (subject,) = resolve(sdpa(attention(weigh=weigh), name="maximum"))
    assert explanations(subject) == (mistake,)


def by_size(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Scores have the wrong sign with some numbers of features, and others other values."""
    even = query.shape[-1] in (4, 5, 8, 70)
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    return softmax(-scores) @ value if even else softmax(scores) @ value.flip(-2)


def test_what_shows_in_one_draw_of_cases_alone_is_not_said() -> None:
    (subject,) = resolve(sdpa(by_size, name="sizes"))
    assert [*tally(subject)[1]] == ["scores_negative"]
    assert explanations(subject) == ()


@pytest.mark.parametrize(
    ("change", "mistakes"),
    [
        (lambda value: value.roll(1, -2), ("values_of_the_last_key",)),
        (lambda value: value.flip(-1), ("features_reversed",)),
        (lambda value: value - value.mean(-2, keepdim=True), ()),  # no hidden key has weight
        (lambda value: value[..., :1, :, :].expand_as(value), ("keys_of_another_head",)),
    ],
)
def test_values_that_are_wrong_without_masks_are_no_hidden_keys(change: Any, mistakes: Any) -> None:
    (subject,) = resolve(sdpa(attention(change_value=change), name="values"))
    assert explanations(subject) == mistakes


def test_zeros_alone_are_not_taken_for_features_that_are_lost() -> None:
    function = attention(change_value=lambda value: value - value.mean(-2, keepdim=True))
    names = ["constant_values_come_back", "output_lies_within_values"]
    report = attnbench.check(sdpa(function, name="one"), profile="quick", invariants=names)
    causes = {o.failure.cause for o in report.outcomes if o.failure is not None}
    assert causes - {None} == {"not_a_mean"}


def keys_in_half(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    output: Tensor = attention()(query, key.half().to(key), value)
    return output


def test_scores_far_below_zero_that_are_rounded_are_not_lost() -> None:
    (subject,) = resolve(sdpa(keys_in_half, name="rounded"))
    assert explanations(subject) == ("computed_in_half",)


def turned(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Each head's output stands at the next head."""
    output: Tensor = attention()(query, key, value)
    return output.roll(1, -3) if output.dim() > 3 else output


def test_heads_whose_outputs_are_exchanged_do_not_reach_each_other() -> None:
    (subject,) = resolve(sdpa(turned, name="turned"))
    assert explanations(subject) == ("heads_at_other_places",)


def in_halves(change: Callable[[Tensor], Tensor]) -> Any:
    """A function that takes half types alone."""
    inner = attention(change)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.dtype not in (torch.float16, torch.bfloat16):
            raise RuntimeError("only float16 and bfloat16 are supported")
        query, key, value = (tensor.transpose(1, 2).float() for tensor in (q, k, v))
        output: Tensor = inner(query, key, value)
        return output.transpose(1, 2).to(q.dtype)

    return attend


@pytest.mark.long
def test_what_takes_half_types_alone_is_not_taken_to_lose_precision() -> None:
    first = in_halves(lambda scores: scores + 2 * (numbers(scores) == 0))
    names = ["agrees_with_scalar_reference", "agrees_with_float64", "rounding_has_no_bias"]
    names += ["keys_permute_freely"]
    report = attnbench.check(flash(first, name="halves"), profile="quick", invariants=names)
    causes = {o.failure.cause for o in report.outcomes if o.failure is not None}
    assert causes == {None, "order_of_keys"}
    (subject,) = resolve(flash(in_halves(lambda scores: scores), name="right"))
    assert explanations(subject) == ()


def test_the_last_key_that_is_lost_from_ranges_alone_is_named() -> None:
    (subject,) = resolve(BY_NAME["range_one_too_short"].spec)
    assert explanations(subject)[:1] == ("last_open_key_lost",)


class Halved(torch.autograd.Function):
    """A tensor whose gradient is halved."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] / 2


def test_all_inputs_whose_gradient_is_wrong_are_named() -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        plain: Tensor = attention()(Halved.apply(query), Halved.apply(key), value)
        return plain

    report = attnbench.check(
        sdpa(attend, name="halved"), profile="quick", invariants=["gradients_are_right"]
    )
    (outcome,) = report.outcomes
    assert outcome.diagnosis == "a gradient is missing or wrong: that by query and key"


def test_an_output_with_dropout_is_not_held_against_one_without() -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0) -> Tensor:
        weights = softmax((query * query.shape[-1] ** -0.5) @ key.mT)
        if dropout_p:
            weights = torch.dropout(Halved.apply(weights), dropout_p, True)
        return weights @ value

    names = ["gradients_are_right_with_dropout"]
    report = attnbench.check(sdpa(attend, name="dropped"), profile="quick", invariants=names)
    (outcome,) = report.outcomes
    assert outcome.failure is not None
    assert outcome.failure.cause == "dropout_gradient"
