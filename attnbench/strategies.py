"""Hypothesis strategies of cases, for authors of invariants."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnbench.cases.case import Case
from attnbench.cases.domain import Domain, Taker
from attnbench.cases.spaces import cases, changed, domain_of, listed, listed_of

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from attnbench.cases.drawing import CaseSpace

__all__ = ["Drawn", "cases", "changed", "domain_of", "drawn_of", "listed", "listed_of"]


@dataclass(frozen=True, eq=False)
class Drawn:
    """The cases that a strategy of :func:`cases` draws; using the strategy itself is shorter.

    Args:
        subject: subject for which the cases are legal.
        domain: bounds of the cases.
        changes: changes made to each drawn case, one after the other.
    """

    subject: Taker
    domain: Domain
    changes: tuple[Callable[[Case], Case], ...] = ()

    @property
    def size(self) -> int:
        """The number of bytes that suffice for :meth:`case_of`."""
        return 1024

    def case_of(self, data: bytes) -> Case | None:
        """The case that Hypothesis makes from some bytes, or ``None``."""
        from hypothesis import given, settings

        found: list[Case] = []
        keep: Any = settings(database=None)(given(self.strategy())(lambda case: found.append(case)))
        keep.hypothesis.fuzz_one_input(data)
        return found[-1] if found else None

    def strategy(self) -> CaseSpace:
        """The strategy that draws this."""
        from attnbench.cases.drawing import CaseSpace  # 0.3 s listing need not pay
        from attnbench.cases.parts import Space

        return CaseSpace(Space(self.subject, self.domain, (self._changed,) if self.changes else ()))

    def _changed(self, case: Case) -> Case:
        return functools.reduce(lambda made, change: change(made), self.changes, case)


def drawn_of(strategy: SearchStrategy[Case]) -> Drawn | None:
    """The cases that a strategy draws; ``None`` for one that was not made by :func:`cases`.

    If one of several changes is drawn for a case, the case's seed picks it.
    """
    if domain_of(strategy) is None:
        return None
    (space,) = strategy.parts  # type: ignore[attr-defined]
    ways = space.ways
    picked = (lambda case: ways[case.seed % len(ways)](case)) if len(ways) > 1 else None
    return Drawn(space.subject, space.domain, (picked,) if picked else ways)
