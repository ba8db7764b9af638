"""Hypothesis strategies of cases: structure is drawn here, values come from the case's seed."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnbench.cases.case import Case, Domain

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from attnbench.subject.subject import Subject

__all__ = ["Drawn", "cases", "changed", "domain_of", "drawn_of", "listed", "listed_of"]

_LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17)
_FEATURES = (1, 2, 3, 4, 5, 8, 16, 17)
_LEAD = (1, 2, 3)
_SEEDS = range(2**12)


@dataclass(frozen=True, eq=False)
class Drawn:
    """What a strategy of :func:`cases` draws, so that many can be drawn at once.

    Args:
        subject: for which the cases are legal.
        domain: their bounds.
        changes: made to each case that is drawn, one after the other.
    """

    subject: Subject
    domain: Domain
    changes: tuple[Callable[[Case], Case], ...] = ()

    @functools.cached_property
    def _choices(self) -> tuple[Sequence[Any], ...]:
        """In the order of Case's fields."""
        domain = self.domain
        return (
            _leads(domain.leads),
            _upto(_LENGTHS, domain.min_q_len, domain.max_len),
            _upto(_LENGTHS, domain.min_kv_len, domain.max_len),
            *[_upto(_FEATURES, 1, domain.max_features)] * 3,
            domain.dtypes,
            domain.devices,
            domain.masks,
            domain.layouts,
            domain.regimes,
            _SEEDS,
        )

    @property
    def size(self) -> int:
        """How many bytes stand for a case."""
        return 2 * len(self._choices)

    def case_of(self, data: bytes) -> Case | None:
        """The case that some bytes stand for; ``None`` where it is not in the domain."""
        found = [
            choice[int.from_bytes(data[2 * i : 2 * i + 2], "big") % len(choice)]
            for i, choice in enumerate(self._choices)
        ]
        case = Case(*found)
        if case.mask.startswith("causal") and case.q_len > case.kv_len:  # some would have no key
            case = case.replace(q_len=case.kv_len, kv_len=case.q_len)
        case = self.subject.legal(case)
        if case not in self.domain:
            return None
        for change in self.changes:
            case = change(case)
        return case

    def strategy(self) -> SearchStrategy[Case]:
        """The strategy that draws this."""
        from hypothesis.strategies import binary  # 0.4 s that listing subjects need not pay

        every: Any = binary(min_size=self.size, max_size=self.size).map(self.case_of)
        some = every.filter(lambda case: case is not None)
        some.attnbench_drawn = self  # the one thing we add
        return some  # type: ignore[no-any-return]


def cases(subject: Subject, **narrowed: Any) -> SearchStrategy[Case]:
    """Cases that are legal for a subject.

    Args:
        subject: its sizes and dtypes are respected.
        narrowed: fields of :class:`attnbench.cases.Domain`, for an invariant that has something to
            say of some cases only: ``masks=("causal",)``, ``dtypes=("float64",)``, ``max_len=16``.

    Returns:
        A strategy that carries its :class:`~attnbench.cases.Domain`, so that scheduled cases are
        chosen by the same bounds (:func:`domain_of`).
    """
    domain = replace(Domain(dtypes=subject.dtypes), **narrowed)
    domain = replace(
        domain, dtypes=tuple(d for d in domain.dtypes if d in subject.dtypes) or subject.dtypes[:1]
    )
    return Drawn(subject, domain).strategy()


def changed(strategy: SearchStrategy[Case], change: Callable[[Case], Case]) -> SearchStrategy[Case]:
    """A strategy of :func:`cases` with a change made to what is drawn, not to what is scheduled."""
    drawn = drawn_of(strategy)
    assert drawn is not None
    return replace(drawn, changes=(*drawn.changes, change)).strategy()


def drawn_of(strategy: SearchStrategy[Case]) -> Drawn | None:
    """What a strategy draws; ``None`` for one that was not made by :func:`cases`."""
    return getattr(strategy, "attnbench_drawn", None)


def domain_of(strategy: SearchStrategy[Case]) -> Domain | None:
    """The bounds of a strategy; ``None`` for one that was not made by :func:`cases`."""
    drawn = drawn_of(strategy)
    return None if drawn is None else drawn.domain


def listed(*cases: Case, enough: int | None = None) -> SearchStrategy[Case]:
    """Exactly these cases, once each: for an invariant of which one case costs or says much.

    Args:
        cases: legal ones; equal ones are run once.
        enough: how many of them must have said something; all by default.
    """
    from hypothesis.strategies import sampled_from

    distinct = list(dict.fromkeys(cases))
    strategy = sampled_from(distinct)
    strategy.attnbench_listed = distinct, enough or len(distinct)  # type: ignore[attr-defined]
    return strategy


def listed_of(strategy: SearchStrategy[Case]) -> tuple[list[Case], int] | None:
    """The cases of :func:`listed` and how many are enough; ``None`` for any other strategy."""
    return getattr(strategy, "attnbench_listed", None)


def _upto(sizes: Sequence[int], low: int, high: int) -> list[int]:
    return [size for size in sizes if low <= size <= high] or [low]


def _leads(ranks: Sequence[int]) -> list[tuple[int, ...]]:
    """Leading sizes, each rank as often as any other."""
    longest = max(ranks)
    return [
        lead
        for rank in ranks
        for lead in itertools.product(_LEAD, repeat=rank)
        for _ in range(len(_LEAD) ** (longest - rank))
    ]
