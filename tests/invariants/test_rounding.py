from __future__ import annotations

import math

import pytest
import torch
from attnbench_zoo.base import Mutant
from attnbench_zoo.mutants import rounding as mutants
from attnbench_zoo.mutants import state
from attnbench_zoo.twins.attention import ATTENTION, Attention
from attnbench_zoo.twins.heads import HEADS
from torch import Tensor, nn

from attnbench import check
from attnbench.invariants import rounding, shifts
from attnbench.invariants.layers import module_state
from tests.invariant_runs import by_name, mutant, run

INVARIANTS = by_name(rounding, shifts, module_state)
BROKEN = [*mutants.MUTANTS, *state.MUTANTS[-2:]]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.name)
def test_a_mutant_is_killed_by_its_invariant_with_a_reason(broken: Mutant) -> None:
    for name in broken.killers:
        outcome = run(broken.spec, INVARIANTS[name])
        assert outcome.status == "failed"
        assert "but" in outcome.reason


@pytest.mark.parametrize("name", sorted({name for broken in BROKEN for name in broken.killers}))
def test_the_right_twins_pass(name: str) -> None:
    for twin in (ATTENTION, HEADS):
        assert run(twin.spec, INVARIANTS[name]).status in ("passed", "skipped")


class AllInHalf(Attention):
    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return (query * scale) @ key.mT

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-1).masked_fill(~allowed, 0.0)


class ProbabilitiesInHalf(Attention):
    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        self.narrow = query.dtype
        return super().scores(query, key, scale)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        raw = (hidden - hidden.amax(-1, keepdim=True)).exp().masked_fill(~allowed, 0.0)
        self.total = raw.sum(-1, keepdim=True).clamp_min(torch.finfo(raw.dtype).tiny)
        return raw

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        narrow = weights.to(self.narrow).to(weights.dtype)
        return super().pool(narrow, value) / self.total


@pytest.mark.parametrize("make", [AllInHalf, ProbabilitiesInHalf])
def test_rounding_to_nearest_in_every_stage_has_no_bias(make: type[Attention]) -> None:
    outcome = run(mutant(make), INVARIANTS["rounding_has_no_bias"])
    assert outcome.status == "passed", outcome.reason


@pytest.mark.parametrize(
    ("make", "status"), [(AllInHalf, "skipped"), (ProbabilitiesInHalf, "passed")]
)
def test_gradients_may_lose_what_the_output_loses(make: type[Attention], status: str) -> None:
    outcome = run(mutant(make), INVARIANTS["gradients_are_as_accurate_as_the_output"])
    assert outcome.status == status, outcome.reason


def test_scores_that_are_no_dot_products_are_not_shifted() -> None:
    outcome = run(HEADS.spec, INVARIANTS["common_shift_of_scores_changes_nothing"])
    assert outcome.status == "skipped"
    assert "dot products" in outcome.reason


def _plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = torch.einsum("blhd,bshd->bhls", query * query.shape[-1] ** -0.5, key).softmax(-1)
    return torch.einsum("bhls,bshd->blhd", weights, value)


def test_a_sum_in_float32_is_no_sum_in_a_half_type() -> None:
    name = "rounding_has_no_bias"
    report = check(_plain, style="flash", invariants=[name], profile="quick", dtypes=["float32"])
    assert [outcome.status for outcome in report.outcomes] == ["passed"], str(report)


@pytest.mark.parametrize("least", [-math.inf, -1e5, -5e4])
def test_a_running_maximum_begins_below_all_scores(least: float) -> None:
    class FromLeast(Attention):
        def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
            largest = hidden.amax(-1, keepdim=True).clamp(min=least)
            powers = (hidden - largest.masked_fill(largest.isneginf(), 0.0)).exp()
            sums = powers.sum(-1, keepdim=True)
            return powers / sums.masked_fill(sums == 0.0, 1.0)

    outcome = run(mutant(FromLeast), INVARIANTS["common_shift_of_scores_changes_nothing"])
    assert outcome.status == ("failed" if least > -1e5 else "passed"), outcome.reason


def test_without_a_half_type_nothing_is_said_of_gradients_in_half_types() -> None:
    report = check(
        nn.functional.scaled_dot_product_attention,
        style="sdpa",
        profile="quick",
        dtypes=["float32"],
        invariants=["gradients_are_as_accurate_as_the_output"],
    )
    (outcome,) = report.outcomes
    assert outcome.status == "skipped"
    assert "half type" in outcome.reason
