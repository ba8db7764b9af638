from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from attnbench_zoo.twins.attention import ATTENTION, Attention
from torch import Tensor, nn

import attnbench
from attnbench import Case, MechanismSpec
from attnbench.invariants import pooling, weights
from attnbench.subject.lookup import resolve
from tests.invariant_runs import assert_tells_apart, by_name, case_of, mutant, run

INVARIANTS = by_name(weights, pooling)


class ScaledAfterSoftmax(Attention):
    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return 0.5 * super().normalise(hidden, allowed)


class FilledWithAnyNumber(Attention):
    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return scores.masked_fill(~allowed, -20.0)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-1)


class Sharpened(Attention):
    """Rows still sum to 1."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        right = super().normalise(hidden, allowed)
        count = allowed.sum(-1, keepdim=True).clamp_min(1)
        return (3 * right - 2 / count).masked_fill(~allowed, 0.0)


class LastKeyDropped(Attention):
    def mask(self, query: Tensor, key: Tensor, *masks: Any) -> tuple[Tensor, Tensor]:
        allowed, bias = super().mask(query, key, *masks)
        return allowed & (torch.arange(key.shape[-2]) < max(1, key.shape[-2] - 1)), bias


class OneAddedToTheSum(Attention):
    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        right = super().normalise(hidden, allowed)
        return right / (1 + 0.01 * right.sum(-1, keepdim=True))


class LaterKeysPreferred(Attention):
    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().scores(query, key, scale) + 0.01 * torch.arange(key.shape[-2])


class HandedBackTwiceAsFlat(Attention):
    def forward(self, *args: Any, return_weights: bool = False, **keywords: Any) -> Any:
        output, handed = super().forward(*args, return_weights=True, **keywords)
        return (output, handed.sqrt()) if return_weights else output


class ValueSquashed(Attention):
    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, value.tanh())


class OutputTooLarge(Attention):
    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return 1.01 * super().pool(weights, value)


class RestDropped(Attention):
    """In half types, one query sees the keys in four parts of equal lengths."""

    def mask(self, query: Tensor, key: Tensor, *masks: Any) -> tuple[Tensor, Tensor]:
        allowed, bias = super().mask(query, key, *masks)
        count = key.shape[-2]
        if query.shape[-2] == 1 and query.element_size() == 2 and count > 64:
            allowed = allowed & (torch.arange(count) < count // 4 * 4)
        return allowed, bias


MUTANTS = {
    "weights_sum_to_one": ScaledAfterSoftmax,
    "masked_weights_are_zero": FilledWithAnyNumber,
    "every_attendable_key_matters": LastKeyDropped,
    "pools_values": HandedBackTwiceAsFlat,
    "output_is_linear_in_values": ValueSquashed,
    "output_lies_within_values": OutputTooLarge,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_an_invariant_passes_the_right_attention_and_fails_its_mutant(name: str) -> None:
    assert_tells_apart(INVARIANTS[name], MUTANTS[name])


def test_every_invariant_on_weights_and_pooling_has_a_mutant_here() -> None:
    assert set(INVARIANTS) == set(MUTANTS)


def test_a_subject_without_weights_skips_the_invariants_on_weights_with_that_reason() -> None:
    blind = mutant(Attention, accepts=(), laws=())
    outcome = run(blind, INVARIANTS["weights_sum_to_one"])
    assert outcome.status == "skipped"
    assert outcome.reason == "neither hands back weights nor declares pools_values"


@pytest.mark.parametrize("make", [Sharpened, OneAddedToTheSum])
def test_weights_that_are_no_distribution_are_found(make: Any) -> None:
    assert run(mutant(make), INVARIANTS["weights_sum_to_one"]).status == "failed"


def test_the_invariants_on_pooling_are_skipped_where_pools_values_is_not_declared() -> None:
    blind = mutant(Attention, laws=())
    for name in by_name(pooling):
        outcome = run(blind, INVARIANTS[name])
        assert outcome.status == "skipped", name
        assert "declare" in outcome.reason


def test_declaring_pools_values_without_doing_it_is_a_failure() -> None:
    assert isinstance(ATTENTION.spec, attnbench.MechanismSpec)
    wrong = replace(ATTENTION.spec, make=ValueSquashed)
    assert run(wrong, INVARIANTS["pools_values"]).status == "failed"


def test_weights_of_another_call_may_be_those_of_scores_added_up_in_another_order() -> None:
    case = "b0d-L46-S64-Eq16-Ek16-Ev16-float64-cpu-bias-contiguous-normal-s3042"
    (subject,) = resolve("dot/fused")
    INVARIANTS["pools_values"].check(subject, Case.from_id(case))


def test_a_rest_of_keys_that_is_dropped_in_half_types_alone_is_found() -> None:
    outcome = run(mutant(RestDropped), INVARIANTS["every_attendable_key_matters"])
    assert "after adding 1024 to value 130" in outcome.reason


class StickBreaking(nn.Module):
    """Right: each key takes a share of what the keys after it leave, so the first gets little."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        wide = torch.promote_types(query.dtype, torch.float32)
        scores = query.to(wide) @ key.to(wide).mT
        keep = nn.functional.logsigmoid(-scores)
        if attn_mask is not None:
            keep = keep.masked_fill(~attn_mask, 0.0)
        left = nn.functional.pad(keep, (0, 1)).flip(-1).cumsum(-1).flip(-1)[..., 1:]
        weights = (nn.functional.logsigmoid(scores) + left).exp()
        if attn_mask is not None:
            weights = weights.masked_fill(~attn_mask, 0.0)
        return (weights @ value.to(wide)).to(query.dtype)


def test_a_key_whose_weight_is_too_small_for_the_dtype_is_no_dropped_key() -> None:
    spec = MechanismSpec(
        name="sticks",
        make=lambda *_: StickBreaking(),
        equal_sizes=True,
        conventions={"masks": ("boolean",)},
    )
    outcome = run(spec, INVARIANTS["every_attendable_key_matters"])
    assert outcome.status == "passed", outcome.reason


def test_a_dropped_key_is_found_at_the_smallest_size_that_has_two() -> None:
    outcome = run(mutant(LastKeyDropped), INVARIANTS["every_attendable_key_matters"], shrink=True)
    case = case_of(outcome)
    assert (case.lead, case.q_len, case.kv_len) == ((), 1, 2)
    assert "after adding 1024 to value 1" in outcome.reason
