"""Canaries, which show whether a process that checked a subject still tells right from wrong.

The code under test runs in the process that checks it, where it can replace invariants, and also
what looks for such changes. Each process therefore checks a canary last, which is known to be
wrong. The parent process, which the code cannot reach, expects that it fails.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace

from attnbench.checking.outcomes import KEEPS_CONTRACT, Outcome

CANARY = "canary"
"""The name of the subject that must fail; all of its outputs are NaN."""

_VIOLATIONS = (
    KEEPS_CONTRACT,
    "autocast_agrees",
    "copies_agree",
    "gradient_modes_agree",
    "gradients_are_right",
    "layouts_agree",
)
"""Invariants that a canary of each kind violates, at a cost of some milliseconds."""

CHANGED = "code of the subject changed the suite, so that nothing it says counts: {}"
"""The reason of the outcomes of a process whose suite was changed."""

_REASON = CHANGED.format(
    "the process that checked it did not fail a subject that is known to be wrong"
)


def choose_invariant(invariants: Sequence[str]) -> str | None:
    """Choose at random the invariant that a canary must violate; ``None`` if none is checked."""
    names = [name for name in invariants if name in _VIOLATIONS]
    return secrets.choice(names) if names else None


class Canaries:
    """The outcomes of each process, which count only if its canary failed."""

    def __init__(self) -> None:
        self._outcomes: dict[str, list[Outcome]] = {}
        self._expected: dict[str, str | None] = {}

    def expect(self, process: str, invariant: str | None) -> None:
        """Begin a process, whose canary must violate an invariant."""
        self._outcomes[process], self._expected[process] = [], invariant

    def note(self, process: str, outcome: Outcome) -> None:
        """Keep an outcome of a process, or that of its canary."""
        if outcome.subject != CANARY:
            self._outcomes[process].append(outcome)
        elif (outcome.invariant, outcome.status) == (self._expected[process], "failed"):
            self._expected[process] = None

    def void(self, process: str) -> Iterator[Outcome]:
        """The outcomes of an ended process as crashed ones, if its canary did not fail."""
        if self._expected[process] is not None:
            for outcome in self._outcomes[process]:
                yield replace(outcome, status="crashed", reason=_REASON, note="")
