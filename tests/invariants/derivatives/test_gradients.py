from __future__ import annotations

from typing import Any

import pytest
import torch
from attnbench_zoo.right.scorings import SPECS
from hypothesis.errors import UnsatisfiedAssumption
from torch import Tensor, nn

from attnbench import MechanismSpec, ScoringSpec
from attnbench.cases.case import Case
from attnbench.checking.runner import seeded
from attnbench.invariants.derivatives import gradients
from attnbench.subject.lookup import resolve
from tests.invariant_runs import by_name, run

INVARIANTS = by_name(gradients)
RIGHT = INVARIANTS["gradients_are_right"]
REACH = INVARIANTS["gradients_reach_every_parameter"]


def test_kinks_on_both_sides_closer_than_most_steps_are_not_held_against_gradients() -> None:
    """All keys are equal, so that many share a kink; the slopes settle again at 3e-8 only."""
    (kinked,) = resolve(SPECS["kinked"])
    case = "b4x4x2-L11-S51-Eq5-Ek5-Ev2-float64-cpu-causal_padding-contiguous-equal_keys-s959"
    with seeded(), pytest.raises(UnsatisfiedAssumption):
        RIGHT.check(kinked, Case.from_id(case))


def test_a_sharp_bend_is_not_taken_for_the_rounding_of_float32() -> None:
    # a narrow window whose position changes by hundreds of keys as the query changes by one
    outcome = run("local_predictive(scoring=additive, window=1)", RIGHT)
    assert outcome.status == "passed", outcome.reason


class Linear(nn.Module):
    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(key_size))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return (
            (key @ self.vector + self.bias).unsqueeze(-2).expand(*query.shape[:-1], key.shape[-2])
        )


def test_a_bias_that_softmax_cancels_is_reached_by_the_scores() -> None:
    outcome = run(ScoringSpec(name="linear", make=Linear), REACH)
    assert outcome.status == "passed", outcome.reason


class Additive(nn.Module):
    """Additive attention, in which tanh may come before the sum, and a bias of all scores."""

    def __init__(self, size: int, before: bool) -> None:
        super().__init__()
        self.of_query, self.of_key = (nn.Linear(size, 6, bias=False) for _ in range(2))
        self.last, self.before = nn.Linear(6, 1), before

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        one, other = self.of_query(query)[..., :, None, :], self.of_key(key)[..., None, :, :]
        features = one.tanh() + other.tanh() if self.before else (one + other).tanh()
        scores = self.last(features)[..., 0]
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        return scores.softmax(-1) @ value


@pytest.mark.parametrize("before", [True, False])
def test_a_query_that_softmax_cancels_is_found(before: bool) -> None:
    spec = MechanismSpec(
        name="additive", make=lambda size, *_: Additive(size, before), equal_sizes=True
    )
    found = run(spec, REACH)
    assert found.status == ("failed" if before else "passed"), found.reason


class SmallGradients(nn.Module):
    """Right attention in which some gradients are small or cancel by design."""

    def __init__(self, size: int, value_size: int, which: str) -> None:
        super().__init__()
        self.of_query, self.of_key = (nn.Linear(size, size) for _ in range(2))
        self.of_value = nn.Linear(value_size, value_size)
        self.key_bias = nn.Parameter(torch.randn(2, size))
        self.by_place = nn.Parameter(torch.randn(2, 16))
        self.prefix = nn.Parameter(torch.empty(0, size))
        self.which = which

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        query, key = self.of_query(query), self.of_key(key)
        if self.which == "sharp":
            query, key = (nn.functional.normalize(x, dim=-1) for x in (query, key))
            query = query * 1000
        query, key = query[..., None, :, :], key[..., None, :, :] + self.key_bias[:, None]
        scores = query @ key.mT + self.by_place[:, : query.shape[-2], None]
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask[..., None, :, :], -torch.inf)
        output = (scores.softmax(-1) @ self.of_value(value)[..., None, :, :]).sum(-3)
        output = output + self.prefix.sum()
        return output * 1e-5 if self.which == "small" else output


@pytest.mark.parametrize("which", ["plain", "small", "sharp"])
def test_gradients_that_are_small_or_cancel_by_design_are_no_fault(which: str) -> None:
    def make(size: int, _: int, value_size: int) -> nn.Module:
        return SmallGradients(size, value_size, which)

    outcome = run(MechanismSpec(name="small", make=make, equal_sizes=True), REACH)
    assert outcome.status == "passed", outcome.reason


class SmallScores(Linear):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return 1e-7 * super().forward(query, key)


def test_small_scores_reach_their_parameters() -> None:
    outcome = run(ScoringSpec(name="linear", make=SmallScores), REACH)
    assert outcome.status == "passed", outcome.reason
