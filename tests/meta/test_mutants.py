"""Every mutant is killed by what is meant to kill it, and its right twin is not."""

from __future__ import annotations

import re

import pytest
from attnbench_zoo import Entry, entries

from attnbench.checking.api import select_invariants
from tests.invariant_runs import run

MUTANTS = [entry for entry in entries() if not entry.right]
FIRST = {killer: mutant for mutant in reversed(MUTANTS) for killer in mutant.killers}
"""A mutant for each invariant."""
TWINS = {entry.name: entry for entry in entries() if entry.topic == "twins"}


def assert_killed(mutant: Entry) -> None:
    for invariant in select_invariants(mutant.killers):
        outcome = run(mutant.spec, invariant)
        assert outcome.status == "failed", (
            f"{mutant.name} ({mutant.mistake}): {invariant.name} {outcome.status}, {outcome.reason}"
        )
        broken = re.search("TypeError|NameError|AttributeError|ImportError", outcome.reason)
        assert not broken, f"{mutant.name} fails for a mistake of its own: {outcome.reason}"


@pytest.mark.parametrize("mutant", [*dict.fromkeys(FIRST.values())], ids=lambda one: one.name)
def test_the_first_mutant_of_each_invariant_is_killed(mutant: Entry) -> None:
    assert_killed(mutant)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed_by_each_invariant_that_is_meant_to(mutant: Entry) -> None:
    assert_killed(mutant)


@pytest.mark.parametrize("name", TWINS)
def test_the_right_twin_passes_what_kills_its_mutants(name: str) -> None:
    spec = TWINS[name].spec
    killers = {k for mutant in MUTANTS if mutant.reference is spec for k in mutant.killers}
    for invariant in select_invariants(sorted(killers)):
        outcome = run(spec, invariant)
        assert outcome.status == "passed", f"{invariant.name}: {outcome.reason}"


def test_a_mutant_has_a_name_of_its_own_and_what_kills_it() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert [mutant.name for mutant in MUTANTS if not mutant.killers] == []


def test_every_invariant_has_a_mutant_that_it_kills() -> None:
    assert {invariant.name for invariant in select_invariants(None)} <= FIRST.keys()
