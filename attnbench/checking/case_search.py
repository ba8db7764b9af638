"""The search for a failing case among stored, scheduled and drawn cases, in this order."""

from __future__ import annotations

import math
import operator
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from itertools import takewhile
from typing import Any
from unittest import SkipTest

from hypothesis import Phase, reject
from hypothesis import strategies as st
from hypothesis.errors import UnsatisfiedAssumption

from attnbench.cases.case import LAYOUTS, MASKS, REGIMES, Case
from attnbench.cases.case_space import CaseSpace, Part
from attnbench.cases.space_parts import Foreign, Listing, Space
from attnbench.checking import hypothesis_engine
from attnbench.checking.answer_faults import KnownFault
from attnbench.checking.call_cost import affordable, drawn_limit
from attnbench.checking.explain.where_alone import where_alone
from attnbench.checking.hypothesis_engine import Failures
from attnbench.checking.outcomes import KEEPS_CONTRACT
from attnbench.checking.profiles import Profile
from attnbench.errors import InvariantViolation, RefusalError, may_be_rounding
from attnbench.oracle.references import NoReferenceError
from attnbench.specs import Invariant
from attnbench.subject.devices import is_lost
from attnbench.subject.subject import Subject

_SHRINK_CASES = 300
"""Most cases at which a check runs to shrink a failing one."""

_SECONDS = 20.0
"""Seconds for shrinking; a smaller case is seldom worth more."""

_TRIES = 10
"""Most executions of Hypothesis to draw enough cases, if many are rejected."""

_ANY_SIZES = range(1, 2**31)
_SMALL_SEEDS = 16
_WORDS = (*MASKS, *LAYOUTS, *REGIMES, "float32", "float64", "bfloat16", "float16")
_PLACES = {word: place for place, word in enumerate(_WORDS)}
"""The order of words in shrinking; words that only layers use come last."""

_NO_CASE = "sizes and dtypes of the subject, and filters of its strategy, leave none of its cases"


class IllegalCaseError(Exception):
    """A strategy drew an object that is not a legal case of the subject."""


class UnjudgedError(SkipTest):
    """There is no reference for the subject. A ``SkipTest``, since Hypothesis passes these on."""


class CaseSearch:
    """The state of a search: the cases seen, and the failure, if any.

    Args:
        subject, invariant, profile: what is checked, and how thoroughly.
        space: the cases, on the device and with the dtypes of the run.
        store: failures of earlier runs; ``None`` neither to replay nor to store any.
        known: a fault whose calls are left out.
    """

    def __init__(
        self,
        subject: Subject,
        invariant: Invariant,
        profile: Profile,
        space: CaseSpace,
        store: Failures | None = None,
        known: KnownFault | None = None,
    ) -> None:
        self.subject, self.invariant, self.profile = subject, invariant, profile
        self.space, self.store, self.known = space, store, known
        self.counts = Counter[str]()
        quotas = [part.enough for part in space.parts]
        self.quota = sum(quotas) if all(quotas) else profile.quota  # all: every case is listed
        self.omitted = 0
        self.refusals, self.rejections = Counter[str](), Counter[str]()
        self.failing: Case | None = None
        self.error: BaseException | None = None
        self.shrunk = self.replayed = self.device_lost = False
        self._budget, self._deadline = _SHRINK_CASES, math.inf
        self._verdicts: dict[Case, BaseException | None] = {}
        self._counted_cases: set[Case] = set()
        self._origin: tuple[Part, Case] | None = None

    def run(self, seed: int | None, *, shrink: bool) -> None:
        """Try stored, scheduled and drawn cases until one fails; then shrink and store it."""
        self._replay()
        if self.error is None:
            self._schedule(seed or 0)
        if self.error is None:
            self._generate(seed)
        if self.error is None or self._origin is None:
            return
        self.device_lost = is_lost(self._origin[1].device)
        if shrink and not self.device_lost:
            self._shrink(*self._origin)
        if self.store is not None:
            self.store.save(self._key, self._origin[1].id)

    @property
    def _key(self) -> str:
        return f"attnbench {self.subject.stored_as} {self.invariant.name}"

    def _replay(self) -> None:
        def parts(raw: Case) -> list[Part]:
            return [part for part in self.space.parts if part.includes(raw)]

        def read(text: str) -> Case | None:
            raw = Case.from_id(text)
            return raw if parts(raw) else None

        def fails(raw: Case) -> bool:
            return any(self._fails_raw(part, raw, "replayed") for part in parts(raw))

        if self.store is not None:
            self.replayed = self.store.again(self._key, read, fails) is not None

    def _schedule(self, seed: int) -> None:
        is_brief = self.profile.name == "quick"
        raws = [(p, raw) for p in self.space.parts for raw in p.scheduled(seed, brief=is_brief)]
        entries = [(self._legal_case(part, raw), part, raw) for part, raw in raws]
        cases = [case for case, _, _ in entries if case is not None]
        selection = affordable(self.subject, cases, self.profile, self.quota)
        self.omitted = sum(case not in selection for case in cases)
        for case, part, raw in entries:
            if case in selection and self._fails_raw(part, raw, "scheduled"):
                return

    def _generate(self, seed: int | None) -> None:
        is_wide = self.profile.name == "thorough"
        parts = [part for part in self.space.parts if part.draws]
        shortage = 2 * self.quota - self.counts["scheduled"]
        count = hypothesis_engine.drawn_count(max(self.profile.drawn, shortage))
        limit = drawn_limit(self.subject, count, self.profile, self.quota) if parts else count
        self.omitted += count - limit
        drawn = st.one_of([st.tuples(st.just(part), part.raw(wide=is_wide)) for part in parts])
        for attempt in range(_TRIES if parts else 0):
            rest = limit - self.counts["drawn"]
            if rest <= 0 or self.error is not None:
                return
            hypothesis_engine.find_simplest(
                drawn,
                lambda one: self._fails_drawn(*one, limit),
                phases=hypothesis_engine.phases(Phase.generate),
                examples=rest + 1,  # the simplest comes twice
                seed=f"{self.invariant.name} {seed} {attempt}",
            )

    def _fails_drawn(self, part: Part, raw: Case | None, limit: int) -> bool:
        """Whether a drawn case fails."""
        if self.error is None and self.counts["drawn"] >= limit:
            return False
        if isinstance(part, Foreign) and raw is not None:
            _hold_legal(self.subject, self.invariant, raw)
            if not part.includes(raw):  # it has another dtype
                reject()
        return self._fails_raw(part, raw, "drawn")

    def _shrink(self, part: Part, origin: Case) -> None:
        """Make the failing case smaller as long as it fails, with a limited number of runs."""
        if isinstance(part, Listing):
            return
        self._deadline = time.monotonic() + _SECONDS

        def still_fails(raw: Case | None) -> bool:
            case = self._legal_case(part, raw)
            return case is not None and self._fails_again(case)

        example = hypothesis_engine.find_simplest(
            no_larger(part, origin),
            still_fails,
            phases=(Phase.generate, Phase.shrink),
            seed=f"{self.invariant.name} {origin.id}",
        )
        if example is not None:
            self.shrunk = self._budget > 0
            self._origin = part, example
            self.failing = part.finished(example)
            assert self.failing is not None
            self.error = self._verdict(self.failing)

    def _verdict(self, case: Case) -> BaseException | None:
        """The exception that the check raises at a case, cached; a rejection counts as one."""
        if case not in self._verdicts:
            self._verdicts[case] = self._exception_at(case)
        return self._verdicts[case]

    def _exception_at(self, case: Case) -> BaseException | None:
        reason = self.subject.unsupported(case)
        if reason is not None:
            self.refusals[reason] += 1
            return UnsatisfiedAssumption(reason)
        try:
            self.invariant.check(self.subject, case)
        except RefusalError as refusal:
            self.refusals[str(refusal)] += 1
            return UnsatisfiedAssumption(str(refusal))
        except NoReferenceError as error:
            raise UnjudgedError(str(error)) from None
        except SystemExit as error:  # a subject must not end the run
            violation = InvariantViolation(f"raised on a legal input: SystemExit: {error}")
            violation.__cause__ = error
            return self._unless_known(case, violation)
        except Exception as error:
            return self._unless_known(case, error)
        return None

    def _unless_known(self, case: Case, error: BaseException) -> BaseException:
        if self.known is None or not self.known.is_met(self.subject, case, error):
            return error
        self.refusals[self.known.text] += 1
        return UnsatisfiedAssumption(self.known.text)

    def _fails_raw(self, part: Part, raw: Case | None, kind: str) -> bool:
        """Whether the check fails at a raw case; the case is counted if it gave a verdict."""
        case = self._legal_case(part, raw)
        if case is None or raw is None:
            return False
        if self.error is not None or case in self._counted_cases:
            return case == self.failing
        error = self._verdict(case)
        if kind != "replayed":
            self._counted_cases.add(case)
        if isinstance(error, UnsatisfiedAssumption):
            if kind == "scheduled":
                self.rejections[str(error)] += 1
            return False
        self.counts[kind] += 1
        if error is not None:
            self.failing, self.error, self._origin = case, error, (part, raw)
        return error is not None

    def _fails_again(self, case: Case) -> bool:
        """Whether a case fails like the first failure, as clearly; gives up after some cases."""
        if case not in self._verdicts:
            if self._budget <= 0 or time.monotonic() > self._deadline:
                self._budget = 0
                return False
            self._budget -= 1
        found, first = self._verdict(case), self.error
        return type(found) is type(first) and may_be_rounding(found) <= may_be_rounding(first)

    def _legal_case(self, part: Part, raw: Case | None) -> Case | None:
        """The case that a space makes of a raw one, or ``None``."""
        case = part.finished(raw)
        if raw is None or case is None:
            return None
        is_listed = not isinstance(part, Space)  # the invariant lists these cases itself
        if is_listed or (case != raw and self.subject.legal(raw) == raw):
            _hold_legal(self.subject, self.invariant, case)
        return case

    def where_alone(self) -> str:
        """What tells the failing case from the cases that passed, in words."""
        assert self.failing is not None
        told = {
            case: error
            for case, error in self._verdicts.items()
            if not isinstance(error, UnsatisfiedAssumption)
        }
        passed = [case for case, error in told.items() if error is None]
        return where_alone(self.failing, [case for case in told if case not in passed], passed)

    def left_out(self, count: str) -> str:
        """Why a property says nothing of a subject that takes only so many of its cases."""
        reasons = "; ".join(reason for reason, _ in self.refusals.most_common(3))
        is_known = self.known is not None and self.known.text in self.refusals
        head = "not run: " if is_known else ""
        return f"{head}it takes {count} of the property's cases: {reasons}"

    def exclusion(self) -> tuple[str, str] | None:
        """Status and reason if no case could run; this is no verdict on the contract."""
        if self.counts or (self._verdicts and not self.refusals):
            return None
        message = self.left_out("none") if self.refusals else _NO_CASE
        return "inconclusive" if self.invariant.name == KEEPS_CONTRACT else "skipped", message


def no_larger(part: Space | Foreign, case: Case) -> st.SearchStrategy[Case | None]:
    """Draw raw cases that are no larger than a case, and mostly that case itself.

    Of a strategy that is not ours none is known to be smaller, and all are drawn.
    """
    if isinstance(part, Foreign):
        return part.strategy.filter(part.includes)
    domain, rank = part.domain, len(case.lead)
    deeper = max(domain.leads) - rank
    words = domain.masks, domain.layouts, domain.regimes, domain.dtypes
    groups = (
        *(sorted(domain.leads), *[_ANY_SIZES] * max(domain.leads)),
        *(range(least, domain.longest + 1) for least in (domain.min_q_len, domain.min_kv_len)),
        *domain.variants.values(),
        *(sorted(group, key=lambda word: _PLACES.get(word, 99)) for group in words),
        *(*[_ANY_SIZES] * 3, range(_SMALL_SEEDS)),
    )
    options = dict(case.variants)
    ends = (
        *(rank, *case.lead, *[1] * deeper, case.q_len, case.kv_len),
        *(options.get(name, group[0]) for name, group in domain.variants.items()),
        *(case.mask, case.layout, case.regime, case.dtype),
        *(case.query_size, case.key_size, case.value_size, case.seed),
    )
    choices = [
        [*takewhile(partial(operator.ne, end), group), end]
        for group, end in zip(groups, ends, strict=True)
    ]
    return st.tuples(*(_mostly_last(choice, len(choices)) for choice in choices)).map(
        lambda chosen: case if chosen == ends else part.nearest_case(chosen)
    )


def _mostly_last(choices: Sequence[Any], fields: int) -> st.SearchStrategy[Any]:
    """Draw one of several choices, ordered from simple to complex, and mostly the last.

    If all fields of a value are drawn like this, more than half of the draws repeat the known
    failure, so that Hypothesis finds it at once and then shrinks it field by field.

    Args:
        choices: the choices of one field.
        fields: number of fields of the value.
    """
    last = len(choices) - 1
    return st.integers(0, 2 * fields * last).map(lambda place: choices[min(place, last)])


def _hold_legal(subject: Subject, invariant: Invariant, case: Any) -> None:
    """Check a case that an invariant's strategy drew.

    Raises:
        IllegalCaseError: it is not a legal case of the subject.
    """
    name = invariant.name
    if not isinstance(case, Case):
        raise IllegalCaseError(
            f"the cases of {name} must be attnbench.Case, but its strategy drew {case!r}"
        )
    if case.mistake is not None:
        raise IllegalCaseError(f"the strategy of {name} drew {case.id}: its {case.mistake}")
    legal = subject.legal(case)
    # if a spec's sizes() is not idempotent, there is no nearest legal case
    if legal != case and subject.legal(legal) == legal:
        raise IllegalCaseError(
            f"the strategy of {name} drew {case.id}, which is not legal for {subject.name}; the "
            f"nearest legal case is {legal.id}. End the strategy with .map(subject.legal), or "
            "filter such cases out."
        )
