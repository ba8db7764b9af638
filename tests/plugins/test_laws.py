"""The laws that mechanisms bring pass what does not break them; the zoo has what does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attnbench_zoo import entries

import attnbench
from attnbench.checking.api import select_invariants
from attnbench.checking.profiles import Profile
from attnbench.checking.runner import run_invariant, seeded
from attnbench.subject.lookup import resolve
from tests.invariant_runs import run

LAWS = sorted(
    {law for e in entries() for law in e.killers if e.topic == "mechanisms"} - {"bounded_by_one"}
)


@pytest.mark.parametrize("law", LAWS)
def test_a_law_passes_a_right_mechanism_that_declares_it(law: Any) -> None:
    names = (subject for subject in attnbench.subjects() if "(" not in subject)
    declared = [name for name in names if law in getattr(attnbench.get(name), "laws", ())]
    assert declared
    (subject,), (invariant,) = resolve(declared[0]), select_invariants([law])
    with seeded():
        found = run_invariant(subject, invariant, Profile("few", 10), shrink=False)
    assert found.status == "passed", found.reason


def test_the_expectation_is_compared_within_the_rounding_of_the_scores() -> None:
    case = "b1x2x1-L1-S1-Eq5-Ek5-Ev5-float32-cpu-boolean-offset-far-s2680"
    (subject,) = resolve("forced_forward")
    (invariant,) = select_invariants(["training_is_the_expectation"])
    invariant.check(subject, attnbench.Case.from_id(case))


def test_each_exemption_of_a_mechanism_names_a_known_invariant_and_gives_a_reason() -> None:
    known = {invariant.name for invariant in select_invariants(None)}
    for name in attnbench.subjects():
        spec = attnbench.get(name.partition("(")[0])
        for invariant, reason in spec.exempt.items():
            assert invariant in known
            assert len(reason.split()) > 4, (name, invariant)


class HasNoParts(torch.nn.Module):
    def forward(self, query: Any, key: Any, value: Any, attn_mask: Any = None) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)


@pytest.mark.parametrize(
    ("law", "part"),
    [
        ("picks_one_key", "scoring"),
        ("samples_follow_soft_weights", "scoring"),
        ("only_window_has_weight", "edges"),
        ("looks_back_at_most_its_window", "window"),
        ("penalty_is_zero_iff_orthonormal", "penalty"),
    ],
)
def test_a_law_says_what_it_reads_of_a_module_that_lacks_it(law: str, part: str) -> None:
    spec = attnbench.MechanismSpec(
        name="bare",
        make=lambda *sizes: HasNoParts(),
        equal_sizes=True,
        laws=("pools_values", law),
        dtypes=("float32", "float64"),
    )
    outcome = run(spec, law, shrink=True)
    assert outcome.status == "failed"
    assert f"has no attribute {part!r}" in outcome.reason
