from __future__ import annotations

from typing import Any

import pytest
from attnbench_zoo.right.attention import Attention
from attnbench_zoo.right.scorings import SPECS

from attnbench.cases.case import Case
from attnbench.checking.runner import seeded
from attnbench.invariants.calls.layouts import gradient_layouts_agree
from attnbench.subject.lookup import resolve
from tests.invariant_runs import mutant, run, zoo


def test_a_changed_input_is_named_with_both_of_its_values() -> None:
    wrong = run(zoo("query_scaled_in_place"), "inputs_are_unchanged")
    assert "query[" in wrong.reason
    assert "as before it: the caller's tensor was changed in place" in wrong.reason


def test_a_module_that_cannot_be_copied_is_told_in_one_sentence() -> None:
    class Unpicklable(Attention):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copies of this")

    wrong = run(mutant(Unpicklable), "copies_agree")
    assert "deepcopy of the module raised TypeError: no copies of this" in wrong.reason


def test_what_is_kept_of_inference_mode_is_told_with_the_call_that_came_before() -> None:
    wrong = run(zoo("factors_kept_from_inference"), "gradient_modes_agree")
    assert wrong.status == "failed"
    assert wrong.reason.startswith("after a call under inference_mode, the same call outside")


@pytest.mark.parametrize(
    "case",
    [
        "b1x3-L59-S30-Eq1-Ek1-Ev17-float64-cpu-boolean-transposed-normal-s685",
        "b0d-L9-S40-Eq1-Ek1-Ev1-float64-cpu-none-strided-normal-s314",
    ],
)
def test_gradients_whose_terms_cancel_may_round_by_those_terms(case: str) -> None:
    (cosine,) = resolve(SPECS["cosine"])
    found = Case.from_id(f"{case}+gradient=transposed+of=scores")
    with seeded():  # of single numbers, the cosine is a sign, and its gradient should be 0
        gradient_layouts_agree.check(cosine, found)
