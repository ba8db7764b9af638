"""Hypothesis strategies of cases: structure is drawn here, values come from the case's seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from attnbench.cases import Case, Domain
from attnbench.subject import Subject

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["cases", "domain_of", "listed", "listed_of", "with_domain"]

_LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17)
_FEATURES = (1, 2, 3, 4, 5, 8, 16, 17)
_LEAD = (1, 2, 3)


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
    return with_domain(_drawn(subject, domain), domain)


def with_domain(strategy: SearchStrategy[Case], domain: Domain) -> SearchStrategy[Case]:
    """A strategy that says within which bounds its cases lie."""
    strategy.attnbench_domain = domain  # type: ignore[attr-defined]  # the one thing we add
    return strategy


def domain_of(strategy: SearchStrategy[Case]) -> Domain | None:
    """The bounds of a strategy; ``None`` for one that was not made by :func:`cases`."""
    return getattr(strategy, "attnbench_domain", None)


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


def _one_of_each(*choices: Sequence[Any]) -> SearchStrategy[tuple[Any, ...]]:
    """One of each, drawn as a single number: a draw takes longer than most checks.

    Their product is at most 2^24, up to which Hypothesis draws each number as often as any other.
    """
    from hypothesis.strategies import integers  # 0.4 s that listing subjects need not pay

    def pick(number: int) -> tuple[Any, ...]:
        found = []
        for choice in choices:
            number, index = divmod(number, len(choice))
            found.append(choice[index])
        return tuple(found)

    return integers(0, math.prod(map(len, choices)) - 1).map(pick)


def _drawn(subject: Subject, domain: Domain) -> SearchStrategy[Case]:
    from hypothesis.strategies import builds

    def case(shape: tuple[Any, ...], kinds: tuple[Any, ...]) -> Case:
        lead, q_len, kv_len, *sizes = shape
        if kinds[2].startswith("causal"):  # with more queries than keys some would have none
            q_len, kv_len = min(q_len, kv_len), max(q_len, kv_len)
        return subject.legal(Case(lead, q_len, kv_len, *sizes, *kinds))

    features = _upto(_FEATURES, 1, domain.max_features)
    shapes = _one_of_each(
        _leads(domain.leads),
        _upto(_LENGTHS, domain.min_q_len, domain.max_len),
        _upto(_LENGTHS, domain.min_kv_len, domain.max_len),
        *[features] * 3,
    )
    kinds = _one_of_each(  # in the order of Case's fields
        domain.dtypes, domain.devices, domain.masks, domain.layouts, domain.regimes, range(2**12)
    )
    return builds(case, shapes, kinds).filter(lambda case: case in domain)
