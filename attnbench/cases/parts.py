"""The parts of a case space: what each schedules and draws, and how to search for smaller cases.

These strategies draw the structure of a case; values come from its seed.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from attnbench.cases.case import LAYOUTS, MASKS, REGIMES, Case
from attnbench.cases.domain import Domain, Taker
from attnbench.cases.schedule import schedule, varied
from attnbench.specs import DTYPES

if TYPE_CHECKING:
    from hypothesis.internal.conjecture.data import ConjectureData

__all__ = ["Listing", "Part", "Space", "Step", "Way", "below", "together"]

_SMALL = 17
_FEATURES = (1, 2, 3, 4, 5, 8, 16, 17)
_LEAD = (1, 2, 3)
_SEEDS = range(2**12)
_LARGEST_LEAD = 1024
_LARGEST_SEED = 2**63 - 2  # len() of a range cannot be larger
_WORDS = (*MASKS, *LAYOUTS, *REGIMES, "float32", "float64", "bfloat16", "float16")
_PLACES = {word: place for place, word in enumerate(_WORDS)}
"""The order of words in shrinking; words that only layers use come last."""

Step = Callable[[Case], Case | None]
Way = Callable[[Case], Case]


class _Choices(st.SearchStrategy[Any]):
    """A function of one element drawn from each of several sequences.

    It is equivalent to ``st.tuples`` of ``st.sampled_from``, mapped, but several times faster.

    Args:
        groups: the sequences.
        made: function of a list with one element of each.
        last: whether to take only the last element of each.
    """

    def __init__(
        self, groups: Iterable[Sequence[Any]], made: Callable[[list[Any]], Any], last: bool = False
    ) -> None:
        super().__init__()
        self.made = made
        ends = ((group, len(group) - 1) for group in groups)
        self.groups = [(group, end if last else 0, end) for group, end in ends]

    def do_draw(self, data: ConjectureData) -> Any:
        """Draw an index for each sequence."""
        return self.made([group[data.draw_integer(low, high)] for group, low, high in self.groups])


class _Together(st.SearchStrategy[Any]):
    """A list of elements, each drawn from one of several strategies.

    It is like ``st.lists`` of ``st.one_of``, but Hypothesis does not see the elements: it would try
    the same list again with one element copied over another, which tells nothing new.
    """

    def __init__(self, strategies: Sequence[_Choices], count: int) -> None:
        super().__init__()
        self.strategies, self.count = strategies, count

    def do_draw(self, data: ConjectureData) -> list[Any]:
        """Draw the elements one after the other."""
        last = len(self.strategies) - 1
        return [
            self.strategies[data.draw_integer(0, last) if last else 0].do_draw(data)
            for _ in range(self.count)
        ]


@dataclass(frozen=True, eq=False)
class _Kept:
    """The state of a space that was filtered and mapped.

    Args:
        steps: filters and maps in order.
        enough: number of cases that must give a verdict; 0 for the profile's quota.
    """

    _: KW_ONLY
    steps: tuple[Step, ...] = ()
    enough: int = 0

    def finished(self, case: Case) -> Case | None:
        """Apply all steps to a raw case; ``None`` if a filter rejects it."""
        found: Case | None = case
        for step in self.steps:
            found = None if found is None else step(found)
        return found


@dataclass(frozen=True, eq=False)
class Space(_Kept):
    """The cases of a domain that a subject supports.

    Args:
        subject: subject whose sizes and dtypes are respected.
        domain: bounds of the cases.
        ways: changes, one of which is drawn and applied to a drawn case, but not to scheduled ones.
    """

    subject: Taker
    domain: Domain
    ways: tuple[Way, ...] = ()

    def on(self, device: str, dtypes: Sequence[str] | None) -> Space | None:
        """The same space on a device, with these dtypes only; ``None`` if it has none of them."""
        wanted = tuple(d for d in self.domain.dtypes if dtypes is None or d in dtypes)
        domain = replace(self.domain, devices=(device,), dtypes=wanted)
        return replace(self, domain=domain) if wanted else None

    def scheduled(self, seed: int, *, brief: bool) -> list[Case]:
        """The raw cases that run first, in order: the schedule, made legal for the subject."""
        cases = map(self.subject.legal, schedule(self.domain, seed=seed, brief=brief))
        return [case for case in cases if case in self.domain]

    def raw(self, *, wide: bool = False) -> _Choices:
        """Draw raw cases (``wide``: longer ones too), or ``None`` for cases outside the space.

        No field has more than some hundred choices, since Hypothesis prefers the first of many.
        """
        domain = self.domain
        most = domain.longest_drawn if wide else min(domain.max_len, _SMALL)
        lows = (domain.min_q_len, domain.min_kv_len)
        q_lens, kv_lens = (range(low, max(low, most) + 1) for low in lows)
        features = [n for n in _FEATURES if n <= domain.max_features] or [1]
        groups: list[Sequence[Any]] = [
            *(domain.leads, *[_tied(_LEAD)] * max(domain.leads), q_lens, _tied(kv_lens)),
            *(*domain.variants.values(), *_words(domain)),
            *(features, _tied(features), _tied(features), _SEEDS, self.ways or (None,)),
        ]

        def drawn(chosen: list[Any]) -> tuple[Part, Case | None]:
            *fields, way = chosen
            case = self.made(fields)
            return self, case if case is None or way is None else way(case)

        return _Choices(groups, drawn)

    def choices(self, case: Case | None) -> list[Sequence[Any]]:
        """The choices for each field of a raw case, the simplest first and the case's own last."""
        domain, lens, sizes = self.domain, (self.domain.longest,) * 2, (self.domain.widest,) * 3
        own = case or Case((_LARGEST_LEAD,) * max(domain.leads), *lens, *sizes, seed=_LARGEST_SEED)
        ranks = sorted({*domain.leads, len(own.lead)})
        words = (sorted(group, key=lambda word: _PLACES.get(word, 99)) for group in _words(domain))
        groups: list[Sequence[Any]] = [*domain.variants.values(), *words]
        if case is not None:
            first = {name: group[0] for name, group in domain.variants.items()}
            tried = {**first, **dict(getattr(case, "variants", ()))}
            ends = (*map(tried.get, first), case.mask, case.layout, case.regime, case.dtype)
            groups = [
                [*itertools.takewhile(functools.partial(operator.ne, end), group), end]
                for group, end in zip(groups, ends, strict=True)
            ]
        return [
            ranks[: ranks.index(len(own.lead)) + 1],
            *(_upto(size) for size in (*own.lead, *(1,) * (ranks[-1] - len(own.lead)))),
            *(_upto(own.q_len, domain.min_q_len), _upto(own.kv_len, domain.min_kv_len), *groups),
            *map(_upto, (own.query_size, own.key_size, own.value_size)),
            _upto(min(own.seed, _LARGEST_SEED), 0),
        ]

    def made(self, chosen: Sequence[Any]) -> Case | None:
        """The nearest legal case with these fields; a ``None`` copies the field it is tied to."""
        domain, count = self.domain, len(self.domain.variants)
        rank, *leading = chosen[: -10 - count]
        q_len, kv_len, *options = chosen[-10 - count : -8]
        mask, layout, regime, dtype, query, key, value, seed = chosen[-8:]
        kv_len = kv_len or max(q_len, domain.min_kv_len)
        if mask.startswith("causal") and q_len > kv_len:  # otherwise some queries have no key
            q_len, kv_len = kv_len, q_len
        lead = tuple(size or min(q_len, 4) for size in leading[:rank])
        sizes = (q_len, kv_len, query, key or query, value or query)
        case = Case(lead, *sizes, dtype, domain.devices[0], mask, layout, regime, seed)
        case = case.tried(**dict(zip(domain.variants, options, strict=True)))
        case = self.subject.legal(case)
        return case if case in domain else None


@dataclass(frozen=True, eq=False)
class Listing(_Kept):
    """A fixed list of cases, for an invariant whose cases are expensive or hand-picked.

    Args:
        cases: the cases in order, without repetition.
        variants: variants of the property; the cases take the options of each in turn.
    """

    cases: tuple[Case, ...]
    variants: Mapping[str, Sequence[Any]]

    def on(self, device: str, dtypes: Sequence[str] | None) -> Listing:
        """The same cases on a device; other dtypes are replaced by the first of ``dtypes``."""
        taken = {d: d if not dtypes or d in dtypes else dtypes[0] for d in DTYPES}
        kept = {case.replace(device=device, dtype=taken[case.dtype]): None for case in self.cases}
        return replace(self, cases=tuple(kept), enough=min(self.enough, len(kept)))

    def scheduled(self, seed: int, *, brief: bool) -> list[Case]:
        """The cases; another seed gives other values."""
        return [self.made((number, seed)) for number in range(len(self.cases))]

    def raw(self, *, wide: bool = False) -> _Choices:
        """Draw any of the cases."""
        return _Choices([self.scheduled(0, brief=False)], lambda chosen: (self, *chosen))

    def choices(self, case: Case | None) -> list[Sequence[Any]]:
        """The choices for the index of a case and for the number added to its seed."""
        number, raised = len(self.cases) - 1, _LARGEST_SEED
        if case is not None:
            places = ((number, case.seed - one.seed) for number, one in enumerate(self.cases))
            number, raised = next(p for p in places if p[1] >= 0 and self.made(p) == case)
        return [range(number + 1), range(raised + 1)]

    def made(self, chosen: Sequence[Any]) -> Case:
        """The case with an index, with a number added to its seed."""
        number, raised = chosen
        case = self.cases[number]
        return varied(case.replace(seed=case.seed + raised), self.variants, number + raised)


Part = Space | Listing


def below(part: Part, case: Case | None, *, only: bool = False) -> st.SearchStrategy[Case | None]:
    """Draw raw cases that are no larger than a given one, to search for smaller failures.

    Args:
        part: space of the cases.
        case: a raw case; ``None`` for all that may be drawn or scheduled.
        only: draw just this case, by the choices that draw it among the others.
    """
    groups = part.choices(case)
    ends = [group[-1] for group in groups]

    def decoded(chosen: list[Any]) -> Case | None:
        return case if case is not None and chosen == ends else part.made(chosen)

    return _Choices(groups, decoded, last=only)


def together(parts: Sequence[Part], count: int, *, wide: bool) -> st.SearchStrategy[Any]:
    """Draw some raw cases at once, each with its part (see :meth:`Space.raw`)."""
    return _Together([part.raw(wide=wide) for part in parts], count)


def _tied(sizes: Sequence[int]) -> list[int | None]:
    """Some sizes and, for about every fourth draw, ``None``: the size of another field."""
    return [*sizes, *[None] * max(1, len(sizes) // 3)]


def _upto(own: int, low: int = 1) -> range:
    return range(min(low, own), own + 1)


def _words(domain: Domain) -> tuple[tuple[str, ...], ...]:
    return domain.masks, domain.layouts, domain.regimes, domain.dtypes
