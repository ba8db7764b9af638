"""The space of an invariant's cases, and the Hypothesis strategy that stands for it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from attnbench.cases.case import Case
from attnbench.cases.space_parts import Foreign, Listing, Space, Step, Way

Part = Space | Listing | Foreign


class NoCaseError(Exception):
    """A space has no case with the requested dtypes."""


@dataclass(frozen=True, eq=False, repr=False)
class CaseSpace:
    """The cases of an invariant: one or several parts, each with its schedule and its draws."""

    parts: tuple[Part, ...]

    def then(self, step: Step) -> CaseSpace:
        """The same space, with a step applied to scheduled and drawn cases alike."""
        return CaseSpace(tuple(replace(part, steps=(*part.steps, step)) for part in self.parts))

    def changed(self, *ways: Way) -> CaseSpace:
        """The same space, with one of several changes drawn and applied to each drawn case."""
        return CaseSpace(
            tuple(replace(p, ways=ways) if isinstance(p, Space) else p for p in self.parts)
        )

    def on(self, device: str, dtypes: Sequence[str] | None) -> CaseSpace:
        """The parts that have one of the dtypes, on a device.

        Raises:
            NoCaseError: no part has any of the dtypes.
        """
        candidates = (part.on(device, dtypes) for part in self.parts)
        parts = tuple(part for part in candidates if part is not None)
        if not parts:
            dtype_groups = (part.domain.dtypes for part in self.parts if isinstance(part, Space))
            names = ", ".join(dict.fromkeys(itertools.chain(*dtype_groups)))
            raise NoCaseError(f"it looks at {names} only, none of {', '.join(dtypes or ())}")
        return CaseSpace(parts)

    def strategy(self) -> st.SearchStrategy[Case]:
        """A Hypothesis strategy of the finished cases, from which :func:`space_of` gives the space.

        Its ``filter`` and ``map`` keep the schedule: they apply to scheduled cases as well.
        """
        drawn = [part.raw().map(part.finished) for part in self.parts]
        strategy: Any = st.one_of([one.filter(lambda case: case is not None) for one in drawn])
        vars(strategy).update(
            attnbench_space=self,
            filter=lambda condition: self.then(
                lambda case: case if condition(case) else None
            ).strategy(),
            map=lambda pack: self.then(pack).strategy(),
        )
        result: st.SearchStrategy[Case] = strategy
        return result


def space_of(strategy: st.SearchStrategy[Any]) -> CaseSpace:
    """The space of a strategy, or of the strategies that ``|`` or ``st.one_of`` joins."""
    space: CaseSpace | None = getattr(strategy, "attnbench_space", None)
    if space is not None:
        return space
    members = getattr(strategy, "original_strategies", ())
    parts = tuple(part for member in members for part in space_of(member).parts)
    is_known = parts and not any(isinstance(part, Foreign) for part in parts)
    return CaseSpace(parts if is_known else (Foreign(strategy),))
