"""Repeated calls: each mistake is found by the invariant that is meant to, and its twin passes."""

from __future__ import annotations

import pytest
from attnbench_zoo.mutants.state import MUTANTS

from attnbench.checking.profiles import PROFILES
from attnbench.checking.runner import run_invariant, seeded
from attnbench.invariants.calls import repetition
from attnbench.subject.lookup import resolve
from tests.invariant_runs import by_name

INVARIANTS = by_name(repetition)
FOUND = [mutant for mutant in MUTANTS if set(mutant.killers) & INVARIANTS.keys()]


@pytest.mark.parametrize("mutant", FOUND, ids=lambda mutant: mutant.name)
def test_a_mistake_is_found_and_its_twin_passes(mutant) -> None:  # type: ignore[no-untyped-def]
    (killer,) = mutant.killers
    for spec, expected in ((mutant.spec, "failed"), (mutant.twin.spec, "passed")):
        (subject,) = resolve(spec)
        with seeded():
            outcome = run_invariant(subject, INVARIANTS[killer], PROFILES["quick"])
        assert outcome.status == expected, outcome.reason


def test_both_invariants_have_a_mistake() -> None:
    assert {killer for mutant in FOUND for killer in mutant.killers} == set(INVARIANTS)
