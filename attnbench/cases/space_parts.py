"""The parts of case spaces: scheduled cases, and those that Hypothesis draws and shrinks to.

A space is a Hypothesis strategy of cases that remembers its parts. The strategies draw the
structure of a case; its values come from its seed. A *raw* case is a case before the filters and
maps of its space; Hypothesis draws and shrinks raw cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from hypothesis import strategies as st

from attnbench.cases.case import Case
from attnbench.cases.domain import Domain
from attnbench.cases.schedule import schedule, varied
from attnbench.cases.sizes import DTYPES

_SMALL = 17
_FEATURES = (1, 2, 3, 4, 5, 8, 16, 17)
_LEAD = (1, 2, 3)
_SEEDS = range(2**12)
_MOST_PAIRS = 2**17
_MOST_NUMBERS = 2**19
"""Most query-key pairs of a scheduled case, and most numbers of its keys, unless its row of the
schedule has more."""

Step = Callable[[Case], Case | None]
Way = Callable[[Case], Case]


@dataclass(frozen=True, eq=False, repr=False)
class _Pipeline:
    """The filters and maps of a space.

    Args:
        steps: filters and maps in order.
        enough: number of cases that must give a verdict; 0 for the profile's quota.
    """

    _: KW_ONLY
    steps: tuple[Step, ...] = ()
    enough: int = 0
    draws = True

    def finished(self, case: Case | None) -> Case | None:
        """Apply all steps to a raw case; ``None`` if a filter rejects it."""
        for step in self.steps:
            case = None if case is None else step(case)
        return case


@dataclass(frozen=True, eq=False, repr=False)
class Space(_Pipeline):
    """The cases of a domain that a subject supports.

    Args:
        subject: subject whose sizes and dtypes are respected.
        domain: bounds of the cases.
        ways: changes, one of which is drawn and applied to a drawn case, but not to scheduled ones.
    """

    subject: Any
    domain: Domain
    ways: tuple[Way, ...] = ()

    def on(self, device: str, dtypes: Sequence[str] | None) -> Space | None:
        """The same space on a device, with these dtypes only; ``None`` if it has none of them."""
        names = tuple(d for d in self.domain.dtypes if dtypes is None or d in dtypes)
        domain = replace(self.domain, device=device, dtypes=names)
        return replace(self, domain=domain) if names else None

    def scheduled(self, seed: int, *, brief: bool = False) -> list[Case]:
        """The raw cases that run first, in order: the schedule, made legal for the subject.

        A long row is left out where the subject makes it long in L and S alike, and one of many
        tokens where it makes them wide.
        """
        cases = schedule(self.domain, seed=seed, brief=brief)
        pairs = [(raw, self.subject.legal(raw)) for raw in cases]
        return [
            case
            for raw, case in pairs
            if case in self.domain
            and _pair_count(case) <= max(_pair_count(raw), _MOST_PAIRS)
            and _number_count(case) <= max(_number_count(raw), _MOST_NUMBERS)
        ]

    def includes(self, raw: Case) -> bool:
        """Whether a raw case is one of the space."""
        options, variants = dict(raw.variants), self.domain.variants
        has_variants = options.keys() == variants.keys() and all(
            option in variants[name] for name, option in options.items()
        )
        return has_variants and raw in self.domain and self.subject.legal(raw) == raw

    def raw(self, *, wide: bool = False) -> st.SearchStrategy[Case | None]:
        """Draw raw cases (with ``wide``, longer ones too); ``None`` for a case outside the space.

        Every size but the first may be tied to another one, so that L = S and L = S = B are common.
        """
        domain = self.domain
        longest = domain.longest_drawn if wide else min(domain.max_len, _SMALL)
        minima = (domain.min_q_len, domain.min_kv_len)
        q_lens, kv_lens = (range(low, max(low, longest) + 1) for low in minima)
        features = [n for n in _FEATURES if n <= domain.max_features] or [1]
        groups: list[Sequence[Any]] = [
            *(domain.leads, *[_with_ties(_LEAD)] * max(domain.leads), q_lens, _with_ties(kv_lens)),
            *domain.variants.values(),
            *(domain.masks, domain.layouts, domain.regimes, domain.dtypes),
            *(features, _with_ties(features), _with_ties(features), _SEEDS),
        ]
        ways = self.ways or (lambda case: case,)
        return _raw_cases(self, [st.sampled_from(group) for group in (*groups, ways)])

    def nearest_case(self, values: Sequence[Any]) -> Case | None:
        """The nearest legal case with these fields; a ``None`` copies the field it is tied to."""
        domain, count = self.domain, len(self.domain.variants)
        rank, *leading = values[: -10 - count]
        q_len, kv_len, *options = values[-10 - count : -8]
        mask, layout, regime, dtype, query, key, value, seed = values[-8:]
        kv_len = kv_len or max(q_len, domain.min_kv_len)
        if mask.startswith("causal") and q_len > kv_len:  # otherwise some queries have no key
            q_len, kv_len = kv_len, q_len
        lead = tuple(size or min(q_len, 4) for size in leading[:rank])
        sizes = (q_len, kv_len, query, key or query, value or query)
        case = Case(lead, *sizes, dtype, domain.device, mask, layout, regime, seed)
        case = case.tried(**dict(zip(domain.variants, options, strict=True)))
        case = self.subject.legal(case)
        return case if case in domain else None


@dataclass(frozen=True, eq=False, repr=False)
class Listing(_Pipeline):
    """A fixed list of cases, for an invariant whose cases are expensive or hand-picked."""

    cases: tuple[Case, ...]
    variants: Mapping[str, Sequence[Any]]
    draws = False

    def includes(self, raw: Case) -> bool:
        """Whether a case is one of the list, with any seed."""
        options = dict(raw.variants)
        return any(case.replace(seed=raw.seed).tried(**options) == raw for case in self.cases)

    def on(self, device: str, dtypes: Sequence[str] | None) -> Listing:
        """The same cases on a device; other dtypes are replaced by the first of ``dtypes``."""
        casts = {d: d if not dtypes or d in dtypes else dtypes[0] for d in DTYPES}
        cases = {case.replace(device=device, dtype=casts[case.dtype]): None for case in self.cases}
        return replace(self, cases=tuple(cases), enough=min(self.enough, len(cases)))

    def scheduled(self, seed: int, *, brief: bool = False) -> list[Case]:
        """The cases; another seed gives other values."""
        return [
            varied(case.replace(seed=case.seed + seed), self.variants, number + seed)
            for number, case in enumerate(self.cases)
        ]

    def raw(self, *, wide: bool = False) -> st.SearchStrategy[Case | None]:
        """Draw any of the cases."""
        return st.sampled_from(self.scheduled(0))


@dataclass(frozen=True, eq=False, repr=False)
class Foreign(_Pipeline):
    """The cases of any other strategy, which Hypothesis draws and shrinks on its own."""

    strategy: st.SearchStrategy[Case]
    dtypes: tuple[str, ...] = DTYPES

    def on(self, device: str, dtypes: Sequence[str] | None) -> Foreign:
        """The same cases on a device, without those of other dtypes."""
        steps = (*self.steps, lambda case: case.replace(device=device))
        return replace(self, steps=steps, dtypes=tuple(dtypes or self.dtypes))

    def includes(self, raw: Case) -> bool:
        """Whether a case has one of the dtypes, the only known condition."""
        return raw.dtype in self.dtypes

    def scheduled(self, seed: int, *, brief: bool = False) -> list[Case]:
        """No cases."""
        return []

    def raw(self, *, wide: bool = False) -> st.SearchStrategy[Case | None]:
        """Draw its cases."""
        return self.strategy


@st.composite
def _raw_cases(
    draw: st.DrawFn, space: Space, choices: Sequence[st.SearchStrategy[Any]]
) -> Case | None:
    *fields, way = [draw(choice) for choice in choices]
    case = space.nearest_case(fields)
    return None if case is None else way(case)


def _with_ties(sizes: Sequence[int]) -> list[int | None]:
    """Sizes and, for about every fourth draw, ``None``, which copies the size of another field."""
    return [*sizes, *[None] * max(1, len(sizes) // 3)]


def _number_count(case: Case) -> int:
    """How many numbers the larger of query and key has."""
    return math.prod(case.lead) * max(case.q_len, case.kv_len) * case.width


def _pair_count(case: Case) -> int:
    return case.q_len * case.kv_len
