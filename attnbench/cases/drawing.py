"""Hypothesis strategies of cases that know their schedule.

``cases()`` and ``listed()`` return a :class:`CaseSpace`. Filtering, mapping or joining one gives
another, so that scheduled cases are filtered and mapped like drawn ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from attnbench.cases.case import Case
from attnbench.cases.parts import Part, Space, Step, Way

if TYPE_CHECKING:
    from hypothesis.internal.conjecture.data import ConjectureData

__all__ = ["CaseSpace", "NoCaseError", "space_of"]


class NoCaseError(Exception):
    """A space has no case with the requested dtypes."""


class CaseSpace(st.SearchStrategy[Case]):
    """A strategy of cases that keeps its parts.

    A *raw* case is a case before the steps of its part; Hypothesis draws and shrinks raw cases.

    Args:
        parts: the spaces that it joins.
    """

    def __init__(self, *parts: Part) -> None:
        super().__init__()
        self.parts = parts

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.parts))

    def filter(self, condition: Callable[[Case], Any]) -> CaseSpace:  # type: ignore[override]
        """The same space, restricted to cases that satisfy a condition."""
        return self._with(lambda case: case if condition(case) else None)

    def map(self, pack: Callable[[Case], Any]) -> Any:
        """The same space with each case changed."""
        return self._with(pack)

    def _with(self, step: Step) -> CaseSpace:
        return CaseSpace(*(replace(part, steps=(*part.steps, step)) for part in self.parts))

    def changed(self, *ways: Way) -> CaseSpace:
        """The same space, with one of several changes drawn and applied to each drawn case."""
        return CaseSpace(
            *(replace(p, ways=ways) if isinstance(p, Space) else p for p in self.parts)
        )

    def __or__(self, other: st.SearchStrategy[Any]) -> Any:
        joined = space_of(other)
        return super().__or__(other) if joined is None else CaseSpace(*self.parts, *joined.parts)

    def on(self, device: str, dtypes: Sequence[str] | None) -> CaseSpace:
        """The parts that have one of the dtypes, on a device.

        Raises:
            NoCaseError: no part has any of the dtypes.
        """
        on_it = (part.on(device, dtypes) for part in self.parts)
        found = [part for part in on_it if part is not None]
        if not found:
            named = (part.domain.dtypes for part in self.parts if isinstance(part, Space))
            looked = ", ".join(dict.fromkeys(itertools.chain(*named)))
            raise NoCaseError(f"it looks at {looked} only, none of {', '.join(dtypes or ())}")
        return CaseSpace(*found)

    def do_draw(self, data: ConjectureData) -> Case:
        """Draw a case when the strategy is used on its own."""
        drawn: st.SearchStrategy[Any] = st.one_of([part.raw() for part in self.parts])
        made = drawn.map(lambda found: found[1] and found[0].finished(found[1]))
        case: Case = data.draw(made.filter(lambda case: case is not None))
        return case


def space_of(strategy: st.SearchStrategy[Any]) -> CaseSpace | None:
    """The space of a strategy, or of the strategies that it joins; ``None`` if it is no space."""
    if isinstance(strategy, CaseSpace):
        return strategy
    joined = [space_of(part) for part in getattr(strategy, "original_strategies", ())]
    spaces = [space for space in joined if space is not None]
    if not spaces or len(spaces) < len(joined):
        return None
    return CaseSpace(*(part for space in spaces for part in space.parts))
