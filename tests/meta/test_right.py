"""What is right is not accused; what others' code does get wrong is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from attnbench_zoo import Entry, entries
from attnbench_zoo.right import RIGHT
from attnbench_zoo.right.scorings import ACCUSED_ONCE, SPECS
from hypothesis.errors import UnsatisfiedAssumption
from torch import nn

from attnbench import MechanismSpec
from attnbench.adapters import multihead
from attnbench.cases.case import Case
from attnbench.checking.api import select_invariants
from attnbench.checking.profiles import PROFILES
from attnbench.checking.runner import run_invariant, seeded, skip_reason
from attnbench.subject.lookup import resolve
from tests.invariant_runs import run

pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
"""The compiler reads it while it traces what a right implementation compiles itself."""

BY_OTHERS = (
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
"""A tenth of all; ``python -m tests.meta.measure right`` runs every one."""
OF_LAYERS = (
    "autocast_agrees",
    "cache_operations_combine",
    "cached_gradients_are_right_or_stopped",
    "calls_may_be_cut_anywhere",
    "cropped_slots_are_forgotten",
    "later_tokens_are_invisible",
    "left_padding_is_inert",
    "padded_item_equals_item_alone",
)
"""Selected rows, copies and calls without a cache are looked at where operations combine."""
OF_CONVENTIONS = (
    *BY_OTHERS,
    "bias_of_all_keys_hides_none",
    "finite_at_extremes",
    "future_does_not_leak",
    "hidden_slots_may_hold_nan",
    "item_alone_equals_item_in_batch",
    "keeps_the_contract",
    "mask_forms_agree",
)
"""What conventions change; every other invariant is held to them as well."""


def accused(spec: Any, names: Any) -> list[str]:
    """What is said against a spec, in the profile quick."""
    outcomes = [run(spec, invariant) for invariant in select_invariants(names)]
    return [f"{o.invariant}: {o.reason}" for o in outcomes if o.status not in ("passed", "skipped")]


def rows(topic: str) -> pytest.MarkDecorator:
    """Right ones of a topic, as parameters."""
    some = [entry for entry in entries() if entry.topic == topic]
    return pytest.mark.parametrize("entry", some, ids=lambda entry: entry.name)


@rows("odd")
def test_what_is_odd_and_right_is_not_accused(entry: Entry) -> None:
    assert not accused(entry.spec, entry.killers)


@pytest.mark.parametrize("spec", RIGHT, ids=lambda spec: spec.name)
def test_a_right_implementation_by_others_is_not_accused(spec: Any) -> None:
    assert not accused(spec, BY_OTHERS)


@rows("by_design")
def test_what_is_by_design_is_not_accused(entry: Entry) -> None:
    assert not accused(entry.spec, OF_LAYERS)


@rows("conventions")
def test_what_follows_its_own_conventions_is_accused_only_if_it_does_not_say_so(
    entry: Entry,
) -> None:
    assert isinstance(entry.spec, MechanismSpec)
    assert not accused(entry.spec, {*OF_CONVENTIONS, *entry.killers})
    assert accused(replace(entry.spec, conventions={}), entry.killers)


@pytest.mark.parametrize("name", ACCUSED_ONCE)
def test_what_was_accused_once_is_not_again(name: str) -> None:
    (subject,) = resolve(SPECS[name])
    for invariant in select_invariants(ACCUSED_ONCE[name]):
        with seeded():
            outcome = run_invariant(subject, invariant, PROFILES["default"])
        assert outcome.status == "passed", f"{invariant.name}: {outcome.reason}"


@pytest.mark.parametrize("name", ["agrees_with_float64", "finite_at_extremes"])
def test_what_takes_half_types_only_is_not_run_in_float64(name: str) -> None:
    (invariant,) = select_invariants([name])
    outcome = run(SPECS["half_types_only"], invariant)
    assert outcome.status == "skipped"
    assert outcome.reason == (
        "it does not support float64, and the reference run in float64 raised TypeError: "
        "float16 and bfloat16 only, not torch.float64"
    )


def test_nan_in_a_float64_that_is_not_supported_is_no_reference() -> None:
    (subject,) = resolve("attnbench_zoo.bugs.finites_are_infinite_in_float64:SPEC")
    (invariant,) = select_invariants(["agrees_with_float64"])
    padded = Case((4,), 11, 11, 8, 8, 8, dtype="bfloat16", mask="padding", seed=339)
    with pytest.raises(UnsatisfiedAssumption, match="a run in it is no reference"):
        invariant.check(subject, subject.legal(padded))


TORCH_MULTIHEAD = replace(multihead(nn.MultiheadAttention), conventions={}, exempt={})
EXEMPTIONS = {
    "empty_rows_give_zeros": "nn.MultiheadAttention gives a query without keys its bias",
    "hidden_slots_may_hold_nan": "nn.MultiheadAttention lets NaN in padding through",
}


def test_what_torchs_multihead_attention_gets_right_is_not_accused() -> None:
    right = {*BY_OTHERS, "item_alone_equals_item_in_batch", "mask_forms_agree", "masks_broadcast"}
    assert not accused(TORCH_MULTIHEAD, right - EXEMPTIONS.keys())


def test_what_it_gets_wrong_is_told_and_quieted_by_an_exemption() -> None:
    exempt = replace(TORCH_MULTIHEAD, exempt=EXEMPTIONS)
    for name, words in zip(EXEMPTIONS, ("no key is left", "= nan, but "), strict=True):
        (told,) = accused(TORCH_MULTIHEAD, [name])
        assert words in told
        (invariant,) = select_invariants([name])
        assert skip_reason(resolve(exempt)[0], invariant) == f"exempt: {EXEMPTIONS[name]}"
