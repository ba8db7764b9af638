"""Running one built-in invariant on a right attention and on one with one mistake in it."""

from __future__ import annotations

import functools
from dataclasses import replace
from types import ModuleType
from typing import Any

from attnbench_zoo import entries
from attnbench_zoo.right.attention import ATTENTION

from attnbench import Case, MechanismSpec, Outcome
from attnbench.checking.plan import select_invariants
from attnbench.checking.profiles import PROFILES
from attnbench.checking.runner import run_invariant, seeded
from attnbench.registry.discovery import call_hooks
from attnbench.specs import Invariant
from attnbench.subject.lookup import resolve

__all__ = ["by_name", "case_of", "mutant", "run", "zoo"]


def by_name(*topics: ModuleType) -> dict[str, Invariant]:
    """The invariants of some topics."""
    specs = [spec for topic in topics for spec in call_hooks(topic)]
    return {spec.name: spec for spec in specs if isinstance(spec, Invariant)}


@functools.cache
def zoo(name: str) -> Any:
    """The spec of an entry of the zoo, wrong or right."""
    (spec,) = (entry.spec for entry in entries() if entry.name == name)
    return spec


def run(
    spec: Any,
    invariant: Invariant | str,
    *,
    profile: str = "quick",
    shrink: bool = False,
    seed: int | None = None,
) -> Outcome:
    """What an invariant, or the one of a name, says of a spec."""
    (subject,) = resolve(spec)
    if isinstance(invariant, str):
        (invariant,) = select_invariants([invariant])
    with seeded():
        return run_invariant(subject, invariant, PROFILES[profile], shrink=shrink, seed=seed)


def mutant(make: Any, **changes: Any) -> MechanismSpec:
    """The right attention's spec with another ``make``."""
    return replace(ATTENTION, name="mutant", make=make, **changes)


def case_of(outcome: Outcome) -> Case:
    """The counterexample of a failure."""
    assert outcome.counterexample is not None, outcome
    return Case.from_id(outcome.counterexample)
