"""The declaration of an invariant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.specs.common import check_callable, check_spec_name, check_type, freeze_tuple

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from attnbench.cases.case import Case

Subject = Any
"""An :class:`attnbench.Subject`, which is made of specs."""

KINDS = ("scoring", "kernel", "mechanism", "layer")
"""Kinds of subject."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Invariant:
    """A property that must hold for every case of a subject.

    Args:
        name: the property, as a statement (``masked_slots_are_inert``); its id everywhere.
        statement: the property in one sentence.
        hint: one sentence that says what usually breaks it, printed under each failure; true of
            every subject that fails it.
        check: ``check(subject, case)`` raises :class:`attnbench.InvariantViolation` if the property
            does not hold. Use ``hypothesis.assume`` in it to reject a case without a verdict.
        cases: ``cases(subject)`` returns a Hypothesis strategy of cases; by default the general
            one.
        applies: ``applies(subject)`` returns ``None``, or why the invariant does not apply.
        law: whether it holds only for subjects that declare it.
        kinds: kinds of subject to which it applies: ``"scoring"``, ``"kernel"``, ``"mechanism"``,
            ``"layer"``; by default all but layers.

    Raises:
        SpecError: a field has the wrong type.
    """

    kind: ClassVar[str] = "invariant"

    name: str
    statement: str = ""
    hint: str = ""
    check: Callable[[Subject, Case], None]
    cases: Callable[[Subject], SearchStrategy[Case]] | None = None
    applies: Callable[[Subject], str | None] | None = None
    law: bool = False
    kinds: tuple[str, ...] = KINDS[:3]

    def __post_init__(self) -> None:
        check_spec_name(self.kind, self.name)
        check_type(self, "statement", str, "a sentence")
        check_type(self, "hint", str, "a sentence")
        check_type(self, "law", bool, "True or False")
        freeze_tuple(self, "kinds", KINDS)
        check_callable(self, "check")
        check_callable(self, "cases", "applies", optional=True)
