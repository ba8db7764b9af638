"""Hypothesis strategies of cases that know their own schedule, and how to look below a case.

Structure is drawn here; values come from the case's seed. A :class:`Space` is what ``cases()``
gives, a :class:`Listing` what ``listed()`` gives. Both stay what they are when they are filtered,
mapped or joined, so that what is scheduled is filtered and mapped as what is drawn is.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from hypothesis import strategies as st

from attnbench.cases.case import LAYOUTS, MASKS, REGIMES, Case
from attnbench.cases.domain import Domain
from attnbench.cases.schedule import schedule, varied

if TYPE_CHECKING:
    from hypothesis.internal.conjecture.data import ConjectureData

__all__ = ["CaseSpace", "Either", "Listing", "NoCaseError", "Part", "Space", "Taker", "space_of"]

_SMALL = 17
_FEATURES = (1, 2, 3, 4, 5, 8, 16, 17)
_LEAD = (1, 2, 3)
_SEEDS = range(2**12)
_DTYPES = ("float32", "float64", "bfloat16", "float16")
_LARGEST_LEAD = 1024
_LARGEST_SEED = 2**63

Step = tuple[str, Callable[[Case], Any]]
Way = Callable[[Case], Case]


class NoCaseError(Exception):
    """No case of a space is of the dtypes that were asked for."""


class Taker(Protocol):
    """What a space of cases asks of a subject."""

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Names of the dtypes that it supports."""

    def legal(self, case: Case) -> Case:
        """The nearest case that is legal for it."""

    def takes_mask(self, kind: str) -> bool:
        """Whether it runs some case of a kind of mask."""


class CaseSpace(st.SearchStrategy[Case]):
    """A strategy of cases that remembers what it was made of.

    A *raw* case is one before ``steps``; Hypothesis draws and shrinks raw ones.

    Args:
        steps: what the strategy was filtered and mapped with, in order.
    """

    def __init__(self, steps: tuple[Step, ...] = ()) -> None:
        super().__init__()
        self.steps = steps

    @property
    def parts(self) -> tuple[Part, ...]:
        """The spaces that it joins; itself if it joins none."""
        raise NotImplementedError

    def then(self, step: Step) -> CaseSpace:
        """The same space with a step more."""
        raise NotImplementedError

    def on(self, device: str, dtypes: Sequence[str] | None) -> CaseSpace:
        """The same space on a device, of these dtypes only.

        Raises:
            NoCaseError: it has none of them.
        """
        raise NotImplementedError

    def filter(self, condition: Callable[[Case], Any]) -> CaseSpace:  # type: ignore[override]
        """The same space without some cases."""
        return self.then(("filter", condition))

    def map(self, pack: Callable[[Case], Any]) -> Any:
        """The same space with each case changed."""
        return self.then(("map", pack))

    def __or__(self, other: st.SearchStrategy[Any]) -> Any:
        joined = space_of(other)
        if joined is None:
            return super().__or__(other)
        return Either((*self.parts, *joined.parts))

    def do_draw(self, data: ConjectureData) -> Case:
        """What Hypothesis draws where the strategy is used by itself."""
        return data.draw(self._finished)

    @functools.cached_property
    def _finished(self) -> st.SearchStrategy[Case]:
        drawn = st.one_of(
            [part.raw().map(functools.partial(_finished, part)) for part in self.parts]
        )
        return drawn.filter(lambda case: case is not None)  # type: ignore[return-value]


class Part(CaseSpace):
    """A space of one kind: of a domain, or listed."""

    enough = 0
    """How many cases must have said something; 0 for the profile's quota."""

    drawn = True
    """Whether cases are drawn beyond the scheduled ones."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """Itself."""
        return (self,)

    def finished(self, case: Case) -> Case | None:
        """A raw case after every step; ``None`` where a filter leaves it out."""
        for kind, function in self.steps:
            if kind == "map":
                case = function(case)
            elif not function(case):
                return None
        return case

    def raw(self, *, wide: bool = False) -> st.SearchStrategy[Case | None]:
        """Draws raw cases, and ``None`` for what is not in the space; ``wide``: longer ones too."""
        raise NotImplementedError

    def scheduled(self, seed: int, *, brief: bool) -> list[Case]:
        """The raw cases that are looked at first, in order."""
        raise NotImplementedError

    def below(self, case: Case | None) -> st.SearchStrategy[Case | None]:
        """Raw cases no larger than one; for ``None`` all that may be drawn or scheduled."""
        raise NotImplementedError

    def exactly(self, case: Case) -> st.SearchStrategy[Case]:
        """One raw case, by the choices with which :meth:`below` draws it."""
        raise NotImplementedError


class Space(Part):
    """Cases of a domain that are legal for a subject.

    Args:
        subject: its sizes and dtypes are respected.
        domain: bounds of the cases.
        ways: one of them is drawn, and changes the drawn case; scheduled ones stay as they are.
        steps: as of :class:`CaseSpace`.
    """

    def __init__(
        self,
        subject: Taker,
        domain: Domain,
        ways: tuple[Way, ...] = (),
        steps: tuple[Step, ...] = (),
    ) -> None:
        super().__init__(steps)
        self.subject, self.domain, self.ways = subject, domain, ways

    def __repr__(self) -> str:
        return f"cases({self.domain})"

    def then(self, step: Step) -> Space:
        """The same space with a step more."""
        return Space(self.subject, self.domain, self.ways, (*self.steps, step))

    def changed(self, *ways: Way) -> Space:
        """The same space, where one of some changes is drawn and made to each drawn case."""
        return Space(self.subject, self.domain, ways, self.steps)

    def on(self, device: str, dtypes: Sequence[str] | None) -> Space:
        """The same space on a device, of these dtypes only."""
        wanted = tuple(d for d in self.domain.dtypes if dtypes is None or d in dtypes)
        if not wanted:
            looked = ", ".join(self.domain.dtypes)
            raise NoCaseError(f"it looks at {looked} only, none of {', '.join(dtypes or ())}")
        domain = replace(self.domain, devices=(device,), dtypes=wanted)
        return Space(self.subject, domain, self.ways, self.steps)

    def scheduled(self, seed: int, *, brief: bool) -> list[Case]:
        """The schedule, made legal."""
        cases = map(self.subject.legal, schedule(self.domain, seed=seed, brief=brief))
        return [case for case in cases if case in self.domain]

    def raw(self, *, wide: bool = False) -> st.SearchStrategy[Case | None]:
        """One choice for each size, which may hang together, and for each other field.

        None of more than some hundred options: of many, Hypothesis prefers the first ones.
        """
        domain, longest = self.domain, max(self.domain.leads)
        most = domain.longest_drawn if wide else min(domain.max_len, _SMALL)
        kv_lens: list[int | None] = [*_lengths(domain.min_kv_len, most)]
        return st.tuples(
            st.sampled_from(domain.leads),
            st.sampled_from(_leads(longest)),
            st.sampled_from(_lengths(domain.min_q_len, most)),
            st.sampled_from(kv_lens + [None] * (len(kv_lens) // 3)),
            st.sampled_from([n for n in _FEATURES if n <= domain.max_features] or [1]),
            st.sampled_from(_others(domain.max_features)),
            st.sampled_from(domain.dtypes),
            st.sampled_from(domain.masks),
            st.sampled_from(domain.layouts),
            st.sampled_from(domain.regimes),
            st.sampled_from(_SEEDS),
            st.sampled_from(_combined(domain.variants)),
            st.sampled_from(self.ways) if self.ways else st.none(),
        ).map(self._made)

    def _made(self, found: tuple[Any, ...]) -> Case | None:
        rank, sizes, q_len, kv_len, query, others, *rest = found
        dtype, mask, layout, regime, seed, variants, way = rest
        kv_len = kv_len or max(q_len, self.domain.min_kv_len)
        key, value = (size or query for size in others)
        if mask.startswith("causal") and q_len > kv_len:  # some queries would have no key
            q_len, kv_len = kv_len, q_len
        lead = tuple(size or min(q_len, 4) for size in sizes[:rank])
        device = self.domain.devices[0]
        case = Case(
            lead, q_len, kv_len, query, key, value, dtype, device, mask, layout, regime, seed
        )
        case = self.subject.legal(case.tried(**variants))
        if case not in self.domain:
            return None
        return case if way is None else way(case)

    def below(self, case: Case | None) -> st.SearchStrategy[Case | None]:
        """One integer a field, none larger than that of the case."""
        limits = self._limits(case)
        most = tuple(high for _, high in limits)

        def decoded(numbers: tuple[int, ...]) -> Case | None:
            if case is not None and numbers == most:
                return case
            found = self.subject.legal(self._decoded(numbers, case))
            return found if found in self.domain else None

        return st.tuples(*(st.integers(low, high) for low, high in limits)).map(decoded)

    def exactly(self, case: Case) -> st.SearchStrategy[Case]:
        """The integers of one case."""
        limits = self._limits(case)
        return st.tuples(*(st.integers(high, high) for _, high in limits)).map(lambda _: case)

    def _ranks(self, case: Case | None) -> list[int]:
        return sorted({*self.domain.leads, *([len(case.lead)] if case else [])})

    def _names(self, case: Case | None) -> list[list[str]]:
        """Masks, layouts, regimes and dtypes, the simplest first, that of the case among them."""
        domain = self.domain
        own = (case.mask, case.layout, case.regime, case.dtype) if case else (None,) * 4
        groups = (domain.masks, domain.layouts, domain.regimes, domain.dtypes)
        orders = (MASKS, LAYOUTS, REGIMES, _DTYPES)
        return [
            # those of layers alone come last
            [n for n in dict.fromkeys((*order, *group, mine)) if n and (n in group or n == mine)]
            for order, group, mine in zip(orders, groups, own, strict=True)
        ]

    def _limits(self, case: Case | None) -> list[tuple[int, int]]:
        """The least and the largest integer of each field; the largest are those of the case."""
        domain, ranks, names = self.domain, self._ranks(case), self._names(case)
        if case is None:
            most = [len(ranks) - 1, *[_LARGEST_LEAD] * max(ranks), domain.longest, domain.longest]
            most += [len(options) - 1 for options in domain.variants.values()]
            most += [*(len(group) - 1 for group in names), *[domain.widest] * 3, _LARGEST_SEED]
        else:
            lead = (*case.lead, *[1] * (max(ranks) - len(case.lead)))
            most = [ranks.index(len(case.lead)), *lead, case.q_len, case.kv_len]
            most += [
                list(options).index(case.variant(name, options[0]))  # type: ignore[type-var]
                for name, options in domain.variants.items()
            ]
            own = (case.mask, case.layout, case.regime, case.dtype)
            most += [group.index(mine) for group, mine in zip(names, own, strict=True)]
            most += [case.query_size, case.key_size, case.value_size, case.seed]
        least = [0, *[1] * max(ranks), domain.min_q_len, domain.min_kv_len]
        least += [*[0] * (len(domain.variants) + len(names)), 1, 1, 1, 0]
        return [(min(low, high), high) for low, high in zip(least, most, strict=True)]

    def _decoded(self, numbers: Sequence[int], case: Case | None) -> Case:
        ranks, left = self._ranks(case), iter(numbers)

        def take(count: int) -> tuple[int, ...]:
            return tuple(itertools.islice(left, count))

        rank = ranks[next(left)]
        lead = take(max(ranks))[:rank]
        lengths = next(left), next(left)
        variants = {name: group[next(left)] for name, group in self.domain.variants.items()}
        mask, layout, regime, dtype = (group[next(left)] for group in self._names(case))
        query, key, value = take(3)
        device = self.domain.devices[0]
        found = Case(
            lead, *lengths, query, key, value, dtype, device, mask, layout, regime, next(left)
        )
        return found.tried(**variants)


class Listing(Part):
    """Exactly some cases, for an invariant of which one case costs or says much.

    Args:
        cases: in order, each once.
        enough: how many of them must have said something.
        variants: of the property; the cases take one option of each in turn.
        steps: as of :class:`CaseSpace`.
    """

    drawn = False

    def __init__(
        self,
        cases: Sequence[Case],
        enough: int,
        variants: Mapping[str, Sequence[Any]],
        steps: tuple[Step, ...] = (),
    ) -> None:
        super().__init__(steps)
        self.cases, self.enough, self.variants = tuple(cases), enough, variants

    def __repr__(self) -> str:
        return f"listed({len(self.cases)} cases)"

    def then(self, step: Step) -> Listing:
        """The same space with a step more."""
        return Listing(self.cases, self.enough, self.variants, (*self.steps, step))

    def on(self, device: str, dtypes: Sequence[str] | None) -> Listing:
        """The same cases on a device; one of another dtype gets the first of these."""
        kept = [
            case.replace(
                device=device,
                dtype=case.dtype if not dtypes or case.dtype in dtypes else dtypes[0],
            )
            for case in self.cases
        ]
        kept = list(dict.fromkeys(kept))
        return Listing(kept, min(self.enough, len(kept)), self.variants, self.steps)

    def scheduled(self, seed: int, *, brief: bool) -> list[Case]:
        """The cases, with other values for another seed."""
        return [self._numbered(number, seed) for number in range(len(self.cases))]

    def _numbered(self, number: int, raised: int) -> Case:
        case = self.cases[number]
        return varied(case.replace(seed=case.seed + raised), self.variants, number + raised)

    def raw(self, *, wide: bool = False) -> st.SearchStrategy[Case | None]:
        """Any of the cases."""
        return st.sampled_from(self.scheduled(0, brief=False))

    def below(self, case: Case | None) -> st.SearchStrategy[Case | None]:
        """The case itself; for ``None`` any, by its number and what was added to its seed."""
        if case is not None:
            return self.exactly(case).map(lambda found: found)
        last = len(self.cases) - 1
        return st.tuples(st.integers(0, last), st.integers(0, _LARGEST_SEED)).map(
            lambda place: self._numbered(*place)
        )

    def exactly(self, case: Case) -> st.SearchStrategy[Case]:
        """The number of one case, and what was added to its seed."""
        for number, one in enumerate(self.cases):
            raised = case.seed - one.seed
            if raised >= 0 and self._numbered(number, raised) == case:
                place = st.tuples(st.integers(number, number), st.integers(raised, raised))
                return place.map(lambda _: case)
        raise LookupError(f"{case.id} is none of the listed cases")


class Either(CaseSpace):
    """Cases of any of some spaces."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        super().__init__()
        self._parts = parts

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.parts))

    @property
    def parts(self) -> tuple[Part, ...]:
        """The spaces that it joins."""
        return self._parts

    def then(self, step: Step) -> Either:
        """The same spaces, each with a step more."""
        return Either(tuple(p for part in self.parts for p in part.then(step).parts))

    def on(self, device: str, dtypes: Sequence[str] | None) -> Either:
        """Those of the spaces that have one of the dtypes."""
        found: list[Part] = []
        reason: NoCaseError | None = None
        for part in self.parts:
            try:
                found += part.on(device, dtypes).parts
            except NoCaseError as error:
                reason = error
        if reason is not None and not found:
            raise reason
        return Either(tuple(found))


def space_of(strategy: st.SearchStrategy[Any]) -> CaseSpace | None:
    """The space that a strategy is or joins; ``None`` for any other strategy."""
    if isinstance(strategy, CaseSpace):
        return strategy
    joined = [space_of(part) for part in getattr(strategy, "original_strategies", ())]
    spaces = [space for space in joined if space is not None]
    if not spaces or len(spaces) < len(joined):
        return None
    return Either(tuple(part for space in spaces for part in space.parts))


def _finished(part: Part, case: Case | None) -> Case | None:
    return None if case is None else part.finished(case)


def _lengths(low: int, most: int) -> list[int]:
    return list(range(low, most + 1)) or [low]


@functools.cache
def _leads(rank: int) -> list[tuple[int | None, ...]]:
    """Leading sizes, of which the first are taken; ``None`` stands for L."""
    free: list[tuple[int | None, ...]] = [*itertools.product(_LEAD, repeat=rank)]
    return free + [(None,) * rank] * (len(free) // 3)


@functools.cache
def _others(most: int) -> list[tuple[int | None, int | None]]:
    """Ek and Ev together: as Eq, or any; ``None`` stands for Eq."""
    sizes = [n for n in _FEATURES if n <= most] or [1]
    found: list[tuple[int | None, int | None]] = [(None, n) for n in (*[None] * len(sizes), *sizes)]
    turned = sizes[1:] + sizes[:1]
    found += [
        (k, sizes[(i + step) % len(sizes)]) for i, k in enumerate(turned) for step in range(6)
    ]
    return found


def _combined(variants: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every choice of one option of each variant."""
    return [
        dict(zip(variants, chosen, strict=True)) for chosen in itertools.product(*variants.values())
    ]
