"""What issues call bugs and maintainers call design is not accused."""

from __future__ import annotations

import pytest
from attnbench_zoo.base import Spec
from attnbench_zoo.right.by_design import BY_DESIGN
from hypothesis.errors import UnsatisfiedAssumption

from attnbench.cases.case import Case
from attnbench.checking.api import select_invariants
from attnbench.checking.profiles import PROFILES
from attnbench.checking.runner import run_invariant, seeded
from attnbench.subject.lookup import resolve

LOOKED_AT = (
    "autocast_agrees",
    "cache_operations_combine",
    "cached_calls_keep_the_contract",
    "cached_gradients_are_right_or_stopped",
    "calls_may_be_cut_anywhere",
    "cropped_slots_are_forgotten",
    "later_tokens_are_invisible",
    "left_padding_is_inert",
    "padded_item_equals_item_alone",
)
"""Selected rows, copies and calls without a cache are looked at where operations combine."""


@pytest.mark.parametrize("spec", BY_DESIGN, ids=lambda spec: spec.name)
def test_what_is_by_design_is_not_accused(spec: Spec) -> None:
    (subject,) = resolve(spec)
    for invariant in select_invariants(LOOKED_AT):
        with seeded():
            outcome = run_invariant(subject, invariant, PROFILES["quick"])
        assert outcome.status in ("passed", "skipped"), f"{invariant.name}: {outcome.reason}"


def test_nan_in_a_float64_that_is_not_supported_is_no_reference() -> None:
    (spec,) = [spec for spec in BY_DESIGN if spec.name == "finites_are_infinite_in_float64"]
    (subject,) = resolve(spec)
    (invariant,) = select_invariants(["agrees_with_float64"])
    padded = Case((4,), 11, 11, 8, 8, 8, dtype="bfloat16", mask="padding", seed=339)
    with pytest.raises(UnsatisfiedAssumption, match="a run in it is no reference"):
        invariant.check(subject, subject.legal(padded))
