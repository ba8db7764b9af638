from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from attnbench_plugins.properties.derivatives import backward
from attnbench_zoo.right.attention import Attention
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.subject.lookup import resolve
from tests.attention_functions import with_gradient
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


def raises(gradient: Tensor) -> Tensor:
    raise ValueError("no backward for this")


class BackwardRaises(Attention):
    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return super().hide(with_gradient(raises)(scores), allowed)


@pytest.mark.parametrize("name", ["gradients_are_right", "gradient_layouts_agree"])
def test_a_backward_pass_that_raises_is_the_subjects_failure(name: str) -> None:
    wrong = run(mutant(BackwardRaises), name)
    assert wrong.status == "failed"
    assert "the backward pass raised ValueError: no backward for this" in wrong.reason
