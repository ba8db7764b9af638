"""A decorator for test modules: each invariant on each subject becomes a test."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from attnbench.checking.answer_faults import KnownFault, known_from
from attnbench.checking.api import explained, outcomes_of
from attnbench.checking.check_report import failure_text
from attnbench.checking.outcomes import KEEPS_CONTRACT, Outcome
from attnbench.checking.plan import planned, select_invariants, try_options
from attnbench.checking.runner import skip_reason
from attnbench.errors import ending_here
from attnbench.registry.address import Address
from attnbench.registry.discovery import Spec
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject


class CheckFailedError(AssertionError):
    """A check neither passed nor was skipped; the message describes the outcome."""

    def __init__(self, text: str, outcome: Outcome, subject: Subject) -> None:
        super().__init__(text)
        self.outcome, self.subject = outcome, subject


@dataclass(frozen=True, eq=False)
class Check:
    """One invariant, to run on a subject inside a test.

    Args:
        invariant: the invariant.
        profile: ``quick``, ``default`` or ``thorough``.
        seed: seed of the drawn cases; ``None`` draws the same cases every time.
    """

    invariant: Invariant
    profile: str = "quick"
    seed: int | None = None

    def __repr__(self) -> str:
        return f"<check {self.invariant.name}>"

    def __call__(self, subject: Subject) -> None:
        """Pass the running test, skip it with the reason, or fail it with the outcome's text."""
        __tracebackhide__ = True
        import pytest

        outcome = self.outcome(subject)
        is_reported = subject in _REPORTED_SUBJECTS
        if outcome.invariant == KEEPS_CONTRACT:
            _REPORTED_SUBJECTS.add(subject)
        if outcome.status == "skipped":
            pytest.skip(outcome.reason)
        if outcome.invariant != self.invariant.name and is_reported:
            pytest.skip(f"not run: {outcome.reason}")
        if outcome.status != "passed":
            raise CheckFailedError(self.text(outcome), outcome, subject) from None

    def outcome(self, subject: Subject) -> Outcome:
        """Run the invariant on a subject; where the contract spoils all, return its outcome."""
        is_skipped, known = skip_reason(subject, self.invariant) is not None, None
        if not is_skipped and KEEPS_CONTRACT not in (self.invariant.name, *subject.exempt):
            contract, known = _contract(subject, self.profile, self.seed)
            if known is not None and known.is_everywhere:
                return contract
        return _outcome(subject, self.invariant, self.profile, self.seed, known)

    def text(self, outcome: Outcome) -> str:
        """The text of an outcome in the failure of a test."""
        is_own = outcome.invariant == self.invariant.name
        return failure_text(outcome, self.invariant.statement if is_own else "")


_REPORTED_SUBJECTS: WeakSet[Subject] = WeakSet()
"""Subjects whose violation of the contract a test has reported; their other tests are skipped.

The contract's own test may be deselected, and with nothing but skips a run would be green.
"""


@functools.lru_cache(maxsize=64)
def _contract(
    subject: Subject, profile: str, seed: int | None
) -> tuple[Outcome, KnownFault | None]:
    """The outcome of the contract, and what it says of other properties' calls."""
    outcome = _outcome(subject, select_invariants([KEEPS_CONTRACT])[0], profile, seed)
    return outcome, known_from(subject, outcome)


def _outcome(
    subject: Subject,
    invariant: Invariant,
    profile: str,
    seed: int | None,
    known: KnownFault | None = None,
) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # a project's filters must not apply
        outcomes = outcomes_of(subject, [invariant], profile=profile, seed=seed, known=known)
        (outcome,) = explained(subject, list(outcomes))
    return outcome


def checks_of(
    targets: Iterable[str | Address | Spec | Callable[..., Any]],
    *,
    style: str | None = None,
    profile: str = "quick",
    seed: int | None = None,
    invariants: Sequence[str] | None = None,
) -> list[tuple[Subject, Check]]:
    """All pairs of a subject and a check, in a stable order.

    Raises:
        AttnbenchError: a target, the profile or an invariant is unknown.
    """
    pairs = []
    for target in targets:
        subjects, selection = planned(target, style=style, profile=profile, invariants=invariants)
        try_options(subjects)
        pairs += [(s, Check(invariant, profile, seed)) for s in subjects for invariant in selection]
    return pairs


@ending_here
def parametrize_with_checks(
    targets: Iterable[str | Address | Spec | Callable[..., Any]],
    *,
    style: str | None = None,
    profile: str = "quick",
    seed: int | None = None,
    invariants: Sequence[str] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Parametrize a test with every invariant on every target, for pytest::

        @attnbench.parametrize_with_checks(["cosine", MY_SPEC])
        def test_attention(subject, check):
            check(subject)

    Args:
        targets: addresses, specs (which need not be registered), functions, modules or classes.
        style: style of call of the last three, as for :func:`attnbench.check`.
        profile: profile of the checks, as in :func:`attnbench.check`.
        seed: seed of the drawn cases; ``None`` draws the same cases every time.
        invariants: names of the invariants to run; by default all.

    Returns:
        A decorator for a function of ``subject`` and ``check``. A check that does not apply skips
        the test with the reason; a failing one shows the outcome's text.
    """
    import pytest

    pairs = checks_of(targets, style=style, profile=profile, seed=seed, invariants=invariants)
    return pytest.mark.parametrize(
        ("subject", "check"),
        pairs,
        ids=[f"{subject.name}-{check.invariant.name}" for subject, check in pairs],
    )
