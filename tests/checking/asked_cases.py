"""An invariant that fails where a test says, and the cases at which it was asked."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from attnbench import Case, Invariant, InvariantViolation, Outcome, Subject
from attnbench.checking.profiles import Profile
from attnbench.checking.runner import run_invariant, seeded
from attnbench.strategies import cases
from attnbench.subject.lookup import resolve

__all__ = ["FEW", "found", "invariant", "run"]

FEW = Profile("few", 30, functions=2_000_000)


def invariant(
    fails: Callable[[Case], bool], strategy: Callable[[Subject], st.SearchStrategy[Case]] = cases
) -> tuple[Invariant, list[Case]]:
    """One that fails at some cases, and the cases at which it was asked, in order."""
    asked: list[Case] = []

    def check(subject: Subject, case: Case) -> None:
        asked.append(case)
        if fails(case):
            raise InvariantViolation(f"fails at {case.id}")

    return Invariant(name="some_property", check=check, cases=strategy), asked


def run(
    one: Invariant,
    profile: Profile = FEW,
    *,
    shrink: bool = True,
    seed: int | None = None,
    dtypes: tuple[str, ...] | None = None,
    target: str = "additive",
) -> Outcome:
    (subject,) = resolve(target)
    with seeded():
        return run_invariant(subject, one, profile, shrink=shrink, seed=seed, dtypes=dtypes)


def found(outcome: Outcome) -> Case:
    assert outcome.counterexample is not None, outcome
    return Case.from_id(outcome.counterexample)
