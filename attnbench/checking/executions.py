"""The executions of one run: what failed before, the schedule, drawn cases, and shrinking."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any
from unittest import SkipTest

from hypothesis import Phase, target
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase
from hypothesis.errors import UnsatisfiedAssumption
from hypothesis.strategies import SearchStrategy

from attnbench.cases.case import Case
from attnbench.cases.drawing import CaseSpace, Part, Space, below
from attnbench.checking import search
from attnbench.checking.call_cost import affordable, drawn_limit
from attnbench.checking.outcomes import CONTRACT
from attnbench.checking.profiles import Profile, nearest_misses
from attnbench.errors import InvariantViolation, RefusalError
from attnbench.oracle.references import NoReferenceError
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

__all__ = ["IllegalCaseError", "Run", "SpaceRun", "UnjudgedError"]

_TRIES = 10
"""Cases drawn for each that is wanted, where most are rejected."""

_AT_ONCE = 6
"""Cases of one example, since an example costs more than a check."""

_SHRINKING = 300
"""Cases at which a check is run to find a smaller one that fails."""

_LARGEST_STORED = 2**22
"""Work of a stored case that is tried again: that of the largest drawn one."""


class IllegalCaseError(Exception):
    """A strategy drew what is no legal case of the subject."""


class UnjudgedError(SkipTest):
    """Nothing judges the subject; Hypothesis lets the exceptions that skip a test through."""


class Run:
    """The state of one run: what was seen, and the failure if there is one."""

    def __init__(self, subject: Subject, invariant: Invariant, profile: Profile) -> None:
        self.subject, self.invariant, self.profile = subject, invariant, profile
        self.seen = Counter[str]()
        self.quota = profile.quota
        self.rejected = self.left_out = 0
        self.refusals = Counter[str]()
        self.failing: Case | None = None
        self.error: BaseException | None = None
        self.shrunk = False
        self._nothing: str | None = None
        self._key = f"attnbench {subject.name} {invariant.name}"
        self._left = _SHRINKING
        self._known: dict[Case, BaseException | None] = {}
        self._counted: set[Case] = set()

    def verdict(self, case: Case) -> BaseException | None:
        """What the check raises at a case, worked out once; a rejection is one too."""
        if case not in self._known:
            self._known[case] = self._raised(case)
        return self._known[case]

    def _raised(self, case: Case) -> BaseException | None:
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
        except SystemExit as error:  # it would end the run, which is not the subject's to do
            return InvariantViolation(f"raised on a legal input: SystemExit: {error}")
        except Exception as error:
            return error
        return None

    def fails(self, case: Case, kind: str) -> bool:
        """Whether the check fails at a case, which is counted if it said something."""
        if self.error is not None or case in self._counted:
            return case == self.failing
        with nearest_misses() as shares:
            error = self.verdict(case)
        if shares and kind == "drawn" and self.profile.name == "thorough":
            target(max(shares), label="largest error relative to its budget")
        if kind != "stored":
            self._counted.add(case)
        if isinstance(error, UnsatisfiedAssumption):
            self.rejected += kind == "scheduled"
            return False
        self.seen[kind] += 1
        if error is not None:
            self.failing, self.error = case, error
        return error is not None

    def fails_again(self, case: Case) -> bool:
        """Whether a case fails as the first did; not worked out any more after some cases."""
        if case not in self._known:
            if self._left <= 0:
                return False
            self._left -= 1
        return type(self.verdict(case)) is type(self.error)

    def finished(self, part: Part, raw: Case | None) -> Case | None:
        """The case that a space makes of a raw one; ``None`` if it makes none."""
        case = None if raw is None else part.finished(raw)
        if raw is None or case is None:
            return None
        listed = not isinstance(part, Space)  # by the invariant, case by case
        if listed or (case != raw and self.subject.legal(raw) == raw):
            self.hold_legal(case)
        return case

    def hold_legal(self, case: Any) -> None:
        """Raise if a strategy of the invariant gave what is no legal case."""
        name = self.invariant.name
        if not isinstance(case, Case):
            raise IllegalCaseError(
                f"the cases of {name} must be attnbench.Case, but its strategy drew {case!r}"
            )
        if case.mistake is not None:
            raise IllegalCaseError(f"the strategy of {name} drew {case.id}: its {case.mistake}")
        legal = self.subject.legal(case)
        # what a spec's sizes() changes at each call has no nearest legal case
        if legal != case and self.subject.legal(legal) == legal:
            raise IllegalCaseError(
                f"the strategy of {name} drew {case.id}, which is not legal for "
                f"{self.subject.name}; the nearest legal case is {legal.id}. "
                "End the strategy with .map(subject.legal), or filter such cases out."
            )

    @property
    def refused(self) -> str:
        """What the subject said most often that it does not take."""
        return "; ".join(reason for reason, _ in self.refusals.most_common(3))

    def ruled_out(self) -> tuple[str, str] | None:
        """Status and reason where no case could be run; that is no verdict on the contract."""
        told = f"it takes none of its cases: {self.refused}" if self.refusals else self._nothing
        if self.seen or told is None:
            return None
        return "inconclusive" if self.invariant.name == CONTRACT else "skipped", told

    def explore(
        self,
        strategy: SearchStrategy[Case],
        device: str,
        dtypes: tuple[str, ...],
        seed: int | None,
        kept: ExampleDatabase | None,
        *,
        shrink: bool,
    ) -> None:
        """Run the check on what failed the last time, then on drawn cases.

        Of the strategy nothing is known: Hypothesis draws and shrinks by itself.
        """
        others: dict[str, None] = {}

        def fail(case: Case) -> bool:
            self.hold_legal(case)
            if case.dtype not in dtypes:
                others[case.dtype] = None
                raise UnsatisfiedAssumption
            case = case.replace(device=device)
            if self.error is not None:
                return self.fails_again(case)
            failed = self.fails(case, "drawn")
            if isinstance(self.verdict(case), UnsatisfiedAssumption):
                raise UnsatisfiedAssumption
            return failed

        shrinking = (Phase.shrink,) if shrink else ()
        stages = ((Phase.reuse, *shrinking), (Phase.generate, Phase.target, *shrinking))
        for stage in stages:
            smallest = search.search(
                strategy,
                fail,
                phases=search.phases(*stage),
                examples=search.drawn_count(self.profile.drawn),
                seed=f"{self.invariant.name} {seed}",
                kept=kept,
                key=self._key,
            )
            if smallest is not None:
                self.shrunk = shrink and self._left > 0
                self.failing = smallest.replace(device=device)
                self.error = self.verdict(self.failing)
                return
        if others:
            drawn, asked = ", ".join(sorted(others)), ", ".join(dtypes)
            self._nothing = f"its strategy draws {drawn} only, none of {asked}"


class SpaceRun(Run):
    """A run over a space that knows its schedule."""

    def __init__(self, subject: Subject, invariant: Invariant, profile: Profile, space: CaseSpace):
        super().__init__(subject, invariant, profile)
        self.space = space
        self.spaces = [part for part in space.parts if isinstance(part, Space)]
        enough = [part.enough for part in space.parts]
        if all(enough):  # that of the listed cases, where there are no others
            self.quota = sum(enough)
        self._origin: tuple[Part, Case] | None = None

    def _key_of(self, part: Part) -> str:
        number = self.space.parts.index(part)
        return self._key + f" {number}" * bool(number)

    def _fails_raw(self, part: Part, raw: Case | None, kind: str) -> bool:
        case = self.finished(part, raw)
        if case is None or raw is None or not self.fails(case, kind):
            return False
        self._origin = part, raw
        return True

    def reuse(self, kept: ExampleDatabase | None) -> None:
        """Run the check on what failed the last time."""
        for part in self.space.parts:
            key = self._key_of(part)
            if kept is None or not any(kept.fetch(key.encode())):
                continue

            def fail(raw: Case | None, part: Part = part) -> bool:
                small = raw is not None and _work(raw) <= _LARGEST_STORED
                return small and self._fails_raw(part, raw, "stored")

            search.search(
                below(part, None), fail, phases=search.phases(Phase.reuse), kept=kept, key=key
            )

    def schedule(self, seed: int) -> None:
        """Run the check on the scheduled cases, one after the other, until one fails."""
        brief = self.profile.name == "quick"
        raws = [(p, raw) for p in self.space.parts for raw in p.scheduled(seed, brief=brief)]
        found = [(self.finished(part, raw), part, raw) for part, raw in raws]
        cases = [case for case, _, _ in found if case is not None]
        if self.spaces and not cases:
            domain = self.spaces[0].domain
            self._nothing = (
                "its strategy's filters leave none of its cases"
                if any(part.steps for part in self.space.parts)
                else f"sizes allows none of its cases: L and S up to {domain.max_len}, "
                f"Eq, Ek and Ev up to {domain.max_features}"
            )
        kept = affordable(self.subject, cases, self.profile, self.quota)
        self.left_out = sum(case not in kept for case in cases)
        for case, part, raw in found:
            if case in kept and self._fails_raw(part, raw, "scheduled"):
                return

    def generate(self, seed: int | None) -> None:
        """Run the check on drawn cases until one fails or enough said something."""
        aim = self.profile.name == "thorough"
        usual = search.drawn_count(self.profile.drawn)
        wanted = drawn_limit(self.subject, usual, self.profile, self.quota)
        self.left_out += usual - wanted
        at_once = 1 if aim else _AT_ONCE
        strategies = [part.raw(wide=aim) for part in self.spaces]

        def fail(batch: list[tuple[Part, Case | None]]) -> bool:
            for part, raw in batch:
                if self.seen["drawn"] >= wanted and self.error is None:
                    return False
                if self._fails_raw(part, raw, "drawn"):
                    return True
            return False

        for attempt in range(_TRIES if self.spaces else 0):
            left = wanted - self.seen["drawn"]
            if left <= 0 or self.error is not None:
                return
            search.search(
                st.lists(st.one_of(strategies), min_size=at_once, max_size=at_once),
                fail,
                phases=search.phases(Phase.generate, Phase.target),
                examples=math.ceil(left / at_once) + 1,  # the first one is the simplest, repeated
                seed=f"{self.invariant.name} {seed} {attempt}",
            )

    def shrink(self) -> None:
        """Make the failing case smaller while it goes on failing, by some runs of the check."""
        assert self._origin is not None
        part, first = self._origin
        if not isinstance(part, Space):
            return

        def still_fails(raw: Case | None) -> bool:
            case = None if raw is None else part.finished(raw)
            return case is not None and self.fails_again(case)

        beginning = search.Beginning(self._key_of(part))
        self.keep(beginning)
        found = search.search(
            below(part, first),
            still_fails,
            phases=(Phase.reuse, Phase.shrink),
            kept=beginning,
            key=self._key_of(part),
        )
        if found is not None:
            self.shrunk = self._left > 0
            self._origin = part, found
            self.failing = part.finished(found)
            assert self.failing is not None
            self.error = self.verdict(self.failing)

    def keep(self, kept: ExampleDatabase | None) -> None:
        """Store the failing case for the next time."""
        if kept is not None and self._origin is not None:
            only, key = below(*self._origin, only=True), self._key_of(self._origin[0])
            search.search(only, lambda _: True, phases=(Phase.generate,), kept=kept, key=key)


def _work(case: Case) -> int:
    """A measure of how large a case is: pairs of a query and a key, times features."""
    widest = max(case.query_size, case.key_size, case.value_size)
    return math.prod(case.lead) * case.q_len * case.kv_len * widest
