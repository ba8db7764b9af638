"""What a plugin declares of an invariant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnbench.specs.common import check_callable, check_name

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from attnbench.cases.case import Case
    from attnbench.subject.subject import Subject

__all__ = ["Invariant"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Invariant:
    """A property that must hold for every case of a subject.

    Args:
        name: the property, as a statement (``masked_slots_are_inert``); its id everywhere.
        statement: the property in one sentence.
        check: ``check(subject, case)`` raises :class:`attnbench.InvariantViolation` if it does not
            hold. ``hypothesis.assume`` inside it rejects a case that says nothing.
        cases: ``cases(subject)`` gives a Hypothesis strategy of cases; the general one by default.
        applies: ``applies(subject)`` gives ``None``, or the reason why it says nothing of it.
        law: it holds only for subjects that declare it.

    Raises:
        SpecError: a field has the wrong type.
    """

    name: str
    statement: str = ""
    check: Callable[[Subject, Case], None]
    cases: Callable[[Subject], SearchStrategy[Case]] | None = None
    applies: Callable[[Subject], str | None] | None = None
    law: bool = False

    def __post_init__(self) -> None:
        check_name("invariant", self.name)
        check_callable("invariant", self.name, check=self.check)
        for what in ("cases", "applies"):
            if getattr(self, what) is not None:
                check_callable("invariant", self.name, **{what: getattr(self, what)})
