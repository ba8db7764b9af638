"""Running one built-in invariant on a right attention and on one with one mistake in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from attnbench_zoo.twins.attention import ATTENTION

from attnbench import Case, MechanismSpec, Outcome
from attnbench.checking.profiles import PROFILES
from attnbench.checking.runner import run_invariant, seeded
from attnbench.registry.discovery import call_hooks
from attnbench.specs import Invariant, KernelSpec, ScoringSpec
from attnbench.subject.lookup import resolve

__all__ = ["assert_tells_apart", "by_name", "case_of", "further_are_long", "mutant", "run"]

Spec = ScoringSpec | KernelSpec | MechanismSpec


def by_name(*topics: ModuleType) -> dict[str, Invariant]:
    """The invariants of some topics."""
    specs = [spec for topic in topics for spec in call_hooks(topic)]
    return {spec.name: spec for spec in specs if isinstance(spec, Invariant)}


def further_are_long(kinds: Mapping[str, Any]) -> list[Any]:
    """Names as parameters of a test; all but the first of a kind are for ``tox -e long``."""
    first = {kind: name for name, kind in reversed(kinds.items())}
    return [
        pytest.param(name, marks=() if first[kind] == name else pytest.mark.long)
        for name, kind in kinds.items()
    ]


def run(
    spec: Spec, invariant: Invariant, *, shrink: bool = False, seed: int | None = None
) -> Outcome:
    """What an invariant says of a spec, on the quick profile."""
    (subject,) = resolve(spec)
    with seeded():
        return run_invariant(subject, invariant, PROFILES["quick"], shrink=shrink, seed=seed)


def mutant(make: Any, **changes: Any) -> MechanismSpec:
    """The right attention's spec with another ``make``."""
    assert isinstance(ATTENTION.spec, MechanismSpec)
    return replace(ATTENTION.spec, name="mutant", make=make, **changes)


def assert_tells_apart(invariant: Invariant, broken: type) -> None:
    """An invariant passes the right attention, and fails a broken one with a reason."""
    right = run(ATTENTION.spec, invariant)
    assert right.status == "passed", right.reason
    wrong = run(mutant(broken), invariant)
    assert wrong.status == "failed"
    assert "but" in wrong.reason or "raised" in wrong.reason


def case_of(outcome: Outcome) -> Case:
    """The counterexample of a failure."""
    assert outcome.counterexample is not None, outcome
    return Case.from_id(outcome.counterexample)
