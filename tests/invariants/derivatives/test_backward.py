from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from attnbench_zoo.mutants.backward import (
    KeyNeedsTheQuerysGradient,
    SelfAttentionCutOff,
    SumKeptBetweenPasses,
)
from attnbench_zoo.twins.attention import Attention
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.invariants.calls import layouts
from attnbench.invariants.derivatives import backward, gradients
from attnbench.subject.lookup import resolve
from tests.invariant_runs import assert_tells_apart, by_name, mutant, run

INVARIANTS = by_name(backward)
MUTANTS = {
    "gradients_alone_equal_gradients_together": KeyNeedsTheQuerysGradient,
    "backward_leaves_no_trace": SumKeptBetweenPasses,
    "one_tensor_equals_three_copies": SelfAttentionCutOff,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_an_invariant_passes_the_right_attention_and_fails_its_mutant(name: str) -> None:
    assert_tells_apart(INVARIANTS[name], MUTANTS[name])


def test_every_invariant_on_the_backward_pass_has_a_mutant_here() -> None:
    assert set(INVARIANTS) == set(MUTANTS)


def test_parameters_require_gradients_again_after_a_check() -> None:
    (subject,) = resolve("additive")
    kept = []
    make = subject.make

    class Kept(type(subject)):  # type: ignore[misc]  # to look at the module afterwards
        def make(self, *sizes: int) -> Any:
            kept.append(make(*sizes))
            return kept[-1]

    names = [field.name for field in fields(subject)]
    again = Kept(**{name: getattr(subject, name) for name in names})
    for seed in range(6):
        INVARIANTS["gradients_alone_equal_gradients_together"].check(again, Case(seed=seed))
    assert kept
    assert all(p.requires_grad for module in kept for p in module.parameters())


def test_a_root_of_no_distance_is_told() -> None:
    class ByDistance(Attention):
        def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
            gap = query.unsqueeze(-2) - key.unsqueeze(-3)
            return -gap.square().sum(-1).sqrt()

    outcome = run(mutant(ByDistance), INVARIANTS["one_tensor_equals_three_copies"])
    assert outcome.status == "failed"


class _Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor) -> Tensor:
        return scores.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise ValueError("no backward for this")


class BackwardRaises(Attention):
    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        cloned: Tensor = _Raises.apply(scores)
        return super().hide(cloned, allowed)


@pytest.mark.parametrize("name", ["gradients_are_right", "gradient_layouts_agree"])
def test_a_backward_pass_that_raises_is_the_subjects_failure(name: str) -> None:
    known = by_name(backward, gradients, layouts)
    wrong = run(mutant(BackwardRaises), known[name])
    assert wrong.status == "failed"
    assert "the backward pass raised ValueError: no backward for this" in wrong.reason
