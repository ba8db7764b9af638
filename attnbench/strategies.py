"""Hypothesis strategies of cases: structure is drawn here, values come from the case's seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from attnbench.cases import Case, Domain
from attnbench.subject import Subject

__all__ = ["cases", "domain_of", "listed", "listed_of", "with_domain"]

_LENGTHS = (1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17)
_FEATURES = (1, 2, 3, 4, 5, 8, 16, 17)
_LEAD = (1, 2, 3)


def cases(subject: Subject, **narrowed: Any) -> st.SearchStrategy[Case]:
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


def with_domain(strategy: st.SearchStrategy[Case], domain: Domain) -> st.SearchStrategy[Case]:
    """A strategy that says within which bounds its cases lie."""
    strategy.attnbench_domain = domain  # type: ignore[attr-defined]  # the one thing we add
    return strategy


def domain_of(strategy: st.SearchStrategy[Case]) -> Domain | None:
    """The bounds of a strategy; ``None`` for one that was not made by :func:`cases`."""
    return getattr(strategy, "attnbench_domain", None)


def listed(*cases: Case, enough: int | None = None) -> st.SearchStrategy[Case]:
    """Exactly these cases, once each: for an invariant of which one case costs or says much.

    Args:
        cases: legal ones; equal ones are run once.
        enough: how many of them must have said something; all by default.
    """
    distinct = list(dict.fromkeys(cases))
    strategy = st.sampled_from(distinct)
    strategy.attnbench_listed = distinct, enough or len(distinct)  # type: ignore[attr-defined]
    return strategy


def listed_of(strategy: st.SearchStrategy[Case]) -> tuple[list[Case], int] | None:
    """The cases of :func:`listed` and how many are enough; ``None`` for any other strategy."""
    return getattr(strategy, "attnbench_listed", None)


def _upto(sizes: Sequence[int], low: int, high: int) -> st.SearchStrategy[int]:
    return st.sampled_from([size for size in sizes if low <= size <= high] or [low])


def _drawn(subject: Subject, domain: Domain) -> st.SearchStrategy[Case]:
    features = _upto(_FEATURES, 1, domain.max_features)
    lead: Callable[[int], st.SearchStrategy[tuple[int, ...]]] = lambda rank: st.tuples(  # noqa: E731
        *[st.sampled_from(_LEAD)] * rank
    )
    return (
        st.builds(
            Case,
            lead=st.sampled_from(domain.leads).flatmap(lead),
            q_len=_upto(_LENGTHS, domain.min_q_len, domain.max_len),
            kv_len=_upto(_LENGTHS, domain.min_kv_len, domain.max_len),
            query_size=features,
            key_size=features,
            value_size=features,
            dtype=st.sampled_from(domain.dtypes),
            device=st.sampled_from(domain.devices),
            mask=st.sampled_from(domain.masks),
            layout=st.sampled_from(domain.layouts),
            regime=st.sampled_from(domain.regimes),
            seed=st.integers(0, 2**16 - 1),
        )
        .map(subject.legal)
        .filter(lambda case: case in domain)
    )
