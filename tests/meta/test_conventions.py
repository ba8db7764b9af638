"""A right attention that says which conventions it follows passes; without them it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attnbench_zoo.right.conventions import FOLLOWING, Following

from attnbench.checking.api import select_invariants
from attnbench.checking.profiles import PROFILES
from attnbench.checking.runner import run_invariant, seeded
from attnbench.subject.lookup import resolve

LOOKED_AT = (
    "agrees_with_float64",
    "agrees_with_scalar_reference",
    "bias_of_all_keys_hides_none",
    "causal_and_padding_combine",
    "empty_rows_give_zeros",
    "finite_at_extremes",
    "future_does_not_leak",
    "gradients_are_right",
    "hidden_slots_may_hold_nan",
    "item_alone_equals_item_in_batch",
    "keeps_the_contract",
    "mask_forms_agree",
    "masked_slots_are_inert",
    "masked_weights_are_zero",
    "masking_equals_deleting",
    "weights_sum_to_one",
)
"""What conventions change; every other invariant is held to them as well."""

each = pytest.mark.parametrize("following", FOLLOWING, ids=lambda one: one.spec.name)


@each
def test_what_follows_its_own_conventions_is_not_accused(following: Following) -> None:
    (subject,) = resolve(following.spec)
    statuses = []
    for invariant in select_invariants((*LOOKED_AT, following.told_by)):
        with seeded():
            outcome = run_invariant(subject, invariant, PROFILES["quick"])
        assert outcome.status in ("passed", "skipped"), f"{invariant.name}: {outcome.reason}"
        statuses.append(outcome.status)
    assert statuses.count("passed") > len(statuses) / 3


@each
def test_what_does_not_say_so_is_told(following: Following) -> None:
    (subject,) = resolve(replace(following.spec, conventions={}))
    (invariant,) = select_invariants([following.told_by])
    with seeded():
        outcome = run_invariant(subject, invariant, PROFILES["quick"], shrink=False)
    assert outcome.status == "failed", outcome.reason
