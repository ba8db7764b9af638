"""Right implementations by others are not accused; what they do get wrong is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attnbench_zoo.right import EXEMPTIONS, RIGHT, TORCH_MULTIHEAD, Right
from attnbench_zoo.right.scorings import ACCUSED_ONCE, SPECS

from attnbench.checking.api import select_invariants
from attnbench.checking.profiles import PROFILES
from attnbench.checking.runner import run_invariant, seeded, skip_reason
from attnbench.subject.lookup import resolve

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
"""The compiler reads it while it traces what a right implementation compiles itself."""

LOOKED_AT = (
    "agrees_with_float64",
    "agrees_with_scalar_reference",
    "causal_and_padding_combine",
    "empty_rows_give_zeros",
    "gradients_are_right",
    "layouts_agree",
    "masked_slots_are_inert",
    "masked_weights_are_zero",
    "masking_equals_deleting",
    "query_alone_equals_query_among_others",
    "weights_sum_to_one",
)
"""A tenth of all; ``python -m tests.meta.mutants.matrix right`` runs every one."""


@pytest.mark.parametrize("right", RIGHT, ids=lambda right: right.name)
def test_a_right_implementation_is_not_accused(right: Right) -> None:
    (subject,) = resolve(right.spec)
    for invariant in select_invariants(LOOKED_AT):
        with seeded():
            outcome = run_invariant(subject, invariant, PROFILES["quick"])
        assert outcome.status in ("passed", "skipped"), f"{invariant.name}: {outcome.reason}"


@pytest.mark.parametrize(
    "seed", [None, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("name", ACCUSED_ONCE)
def test_what_was_accused_once_is_not_again(name: str, seed: int | None) -> None:
    (subject,) = resolve(SPECS[name])
    for invariant in select_invariants(ACCUSED_ONCE[name]):
        with seeded():
            outcome = run_invariant(subject, invariant, PROFILES["default"], seed=seed)
        assert outcome.status == "passed", f"{invariant.name}: {outcome.reason}"


@pytest.mark.parametrize("name", ["agrees_with_float64", "finite_at_extremes"])
def test_what_takes_half_types_only_is_not_run_in_float64(name: str) -> None:
    (subject,) = resolve(SPECS["half_types_only"])
    (invariant,) = select_invariants([name])
    with seeded():
        outcome = run_invariant(subject, invariant, PROFILES["quick"])
    assert outcome.status == "skipped"
    assert outcome.reason == (
        "it does not support float64, and the reference run in float64 raised TypeError: "
        "float16 and bfloat16 only, not torch.float64"
    )


@pytest.mark.parametrize("name", ["empty_rows_give_zeros", "hidden_slots_may_hold_nan"])
def test_nan_from_multihead_attention_is_reported(name: str) -> None:
    (subject,) = resolve(TORCH_MULTIHEAD)
    (invariant,) = select_invariants([name])
    with seeded():
        outcome = run_invariant(subject, invariant, PROFILES["quick"], shrink=False)
    assert outcome.status == "failed"
    assert "= nan, but " in outcome.reason


def test_an_exemption_with_a_reason_quiets_what_multihead_attention_gets_wrong() -> None:
    (subject,) = resolve(replace(TORCH_MULTIHEAD, exempt=EXEMPTIONS))
    for invariant in select_invariants(EXEMPTIONS):
        assert skip_reason(subject, invariant) == f"exempt: {EXEMPTIONS[invariant.name]}"


@pytest.mark.parametrize(
    "name",
    [
        "agrees_with_float64",
        "causal_and_padding_combine",
        "item_alone_equals_item_in_batch",
        "mask_forms_agree",
        "masked_slots_are_inert",
        "masking_equals_deleting",
        "masks_broadcast",
        "valid_lengths_count_the_keys",
    ],
)
def test_what_multihead_attention_gets_right_is_not_accused(name: str) -> None:
    (subject,) = resolve(TORCH_MULTIHEAD)
    (invariant,) = select_invariants([name])
    with seeded():
        outcome = run_invariant(subject, invariant, PROFILES["quick"])
    assert outcome.status == "passed", outcome.reason
