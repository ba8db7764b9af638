"""Finds a failing case among the stored, scheduled and drawn ones, and shrinks it."""

from __future__ import annotations

import math

from hypothesis import Phase
from hypothesis.database import ExampleDatabase

from attnbench.cases.case import Case
from attnbench.cases.drawing import CaseSpace
from attnbench.cases.parts import Part, Space, below, together
from attnbench.checking import hypothesis_engine
from attnbench.checking.call_cost import affordable, drawn_limit
from attnbench.checking.executions import Run
from attnbench.checking.profiles import Profile
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

__all__ = ["SpaceRun"]

_TRIES = 10
"""Most cases drawn for each wanted one, if many are rejected."""

_AT_ONCE = 6
"""Cases per Hypothesis example, since an example costs more than a check."""

_LARGEST_STORED = 2**22
"""Most work of a stored case that is tried again: that of the largest drawn one."""


class SpaceRun(Run):
    """A run over a space of cases with a schedule."""

    def __init__(self, subject: Subject, invariant: Invariant, profile: Profile, space: CaseSpace):
        super().__init__(subject, invariant, profile)
        self.space = space
        self.spaces = [part for part in space.parts if isinstance(part, Space)]
        enough = [part.enough for part in space.parts]
        if all(enough):  # if all cases are listed
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
        """Run the check on stored failures."""
        for part in self.space.parts:
            key = self._key_of(part)
            if kept is None or not any(kept.fetch(key.encode())):
                continue

            def fail(raw: Case | None, part: Part = part) -> bool:
                small = raw is not None and _work(raw) <= _LARGEST_STORED
                return small and self._fails_raw(part, raw, "stored")

            hypothesis_engine.search(
                below(part, None),
                fail,
                phases=hypothesis_engine.phases(Phase.reuse),
                kept=kept,
                key=key,
            )

    def schedule(self, seed: int) -> None:
        """Run the check on the scheduled cases in order until one fails."""
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
        """Run the check on drawn cases until one fails or enough gave a verdict."""
        aim = self.profile.name == "thorough"
        asked = self.wanted
        wanted = drawn_limit(self.subject, asked, self.profile, self.quota)
        self.left_out += asked - wanted

        def fail(batch: list[tuple[Part, Case | None]]) -> bool:
            with self.aimed():
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
            hypothesis_engine.search(
                together(self.spaces, _AT_ONCE, wide=aim),
                fail,
                phases=hypothesis_engine.phases(Phase.generate, Phase.target),
                examples=math.ceil(left / _AT_ONCE) + 1,  # the first repeats the simplest
                seed=f"{self.invariant.name} {seed} {attempt}",
            )

    def shrink(self) -> None:
        """Make the failing case smaller as long as it fails, with a limited number of runs."""
        assert self._origin is not None
        part, first = self._origin
        if not isinstance(part, Space):
            return

        def still_fails(raw: Case | None) -> bool:
            case = None if raw is None else part.finished(raw)
            return case is not None and self.fails_again(case)

        beginning = hypothesis_engine.Beginning(self._key_of(part))
        self.keep(beginning)
        found = hypothesis_engine.search(
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
            hypothesis_engine.search(
                only, lambda _: True, phases=(Phase.generate,), kept=kept, key=key
            )


def _work(case: Case) -> int:
    """A measure of the size of a case: query-key pairs times features."""
    widest = max(case.query_size, case.key_size, case.value_size)
    return math.prod(case.lead) * case.q_len * case.kv_len * widest
