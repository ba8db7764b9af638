from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from attnbench_plugins.properties.derivatives import backward
from attnbench_zoo.right.attention import Attention
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.subject.lookup import resolve
from tests.invariant_runs import mutant, run


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
        backward.gradients_alone_equal_gradients_together.check(again, Case(seed=seed))
    assert kept
    assert all(p.requires_grad for module in kept for p in module.parameters())


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
    wrong = run(mutant(BackwardRaises), name)
    assert wrong.status == "failed"
    assert "the backward pass raised ValueError: no backward for this" in wrong.reason
