"""The check that the cases of an invariant's strategy are legal for a subject."""

from __future__ import annotations

from typing import Any

from attnbench.cases.case import Case
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject


class IllegalCaseError(Exception):
    """A strategy drew an object that is not a legal case of the subject."""


def hold_legal(subject: Subject, invariant: Invariant, case: Any) -> None:
    """Check a case that an invariant's strategy drew.

    Raises:
        IllegalCaseError: it is not a legal case of the subject.
    """
    name = invariant.name
    if not isinstance(case, Case):
        raise IllegalCaseError(
            f"the cases of {name} must be attnbench.Case, but its strategy drew {case!r}"
        )
    if case.mistake is not None:
        raise IllegalCaseError(f"the strategy of {name} drew {case.id}: its {case.mistake}")
    legal = subject.legal(case)
    # if a spec's sizes() is not idempotent, there is no nearest legal case
    if legal != case and subject.legal(legal) == legal:
        raise IllegalCaseError(
            f"the strategy of {name} drew {case.id}, which is not legal for {subject.name}; the "
            f"nearest legal case is {legal.id}. End the strategy with .map(subject.legal), or "
            "filter such cases out."
        )
