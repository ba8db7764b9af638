"""The decorator that makes an invariant of a check; a module of such checks is a plugin."""

from __future__ import annotations

import functools
import inspect
import tomllib
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from attnbench.cases.case_strategies import CaseStrategy
from attnbench.cases.case_strategies import cases as all_cases
from attnbench.specs import Invariant
from attnbench.specs.invariant import KINDS

if TYPE_CHECKING:
    from attnbench.cases.case import Case
    from attnbench.subject.subject import Subject

    _Check = Callable[[Subject, Case], None]


HINTS = tomllib.loads((files("attnbench.invariants") / "hints.toml").read_text())
"""What usually breaks an invariant of the core, by its name."""


def invariant(
    *,
    hint: str = "",
    cases: Callable[..., CaseStrategy] = all_cases,
    applies: Callable[[Any], str | None] | None = None,
    law: bool = False,
    kinds: tuple[str, ...] = KINDS[:3],
    hints: Mapping[str, str] = HINTS,
    **narrowed: Any,
) -> Callable[[_Check], Invariant]:
    """A decorator that makes an invariant of a check.

    Its name is that of the check, and its statement is the first paragraph of the docstring.

    Args:
        hint, cases, applies, law, kinds: as of :class:`attnbench.Invariant`.
        hints: hints by the names of invariants, for those that are given none; by default those of
            the core, which are in ``hints.toml``.
        narrowed: further arguments of ``cases``.
    """

    def declared(check: _Check) -> Invariant:
        statement = inspect.cleandoc(check.__doc__ or "").partition("\n\n")[0]
        return Invariant(
            name=check.__name__,
            statement=" ".join(statement.split()),
            hint=hint or hints.get(check.__name__, ""),
            check=check,
            cases=functools.partial(cases, **narrowed) if narrowed else cases,
            applies=applies,
            law=law,
            kinds=kinds,
        )

    return declared
