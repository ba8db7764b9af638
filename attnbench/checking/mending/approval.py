"""What decides on a change of a subject's source: what failed holds, and nothing else fails."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from hypothesis.errors import UnsatisfiedAssumption
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.cases.case_space import space_of
from attnbench.cases.case_strategies import cases
from attnbench.checking.mending.edit_context import SMALLEST, Edit
from attnbench.checking.mending.ordinary_calls import (
    CALLS,
    Ordinary,
    influences,
    is_near,
    kept,
    output,
    steps,
)
from attnbench.checking.mending.running_code import SourceFile
from attnbench.checking.mending.time_limit import TooLong, limited
from attnbench.checking.outcomes import COMPILING
from attnbench.checking.profiles import PROFILES, current_effort, effort_of
from attnbench.checking.runner import run_invariant, skip_reason
from attnbench.errors import RefusalError
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

_TRIAL_SECONDS = 2.0
"""Most seconds of computing of one property at one case, as changed code may loop."""

_CASES, _MOST_PAIRS = 5, 2**12
"""Most scheduled cases of each property at which a change has to hold, and the largest of them."""

_OTHERWISE = 3
"""Of so many properties that failed, one may still fail at its case."""

_MOST_RANK, _MOST_RANK_OF_STEPS = 2, 3
"""The rank up to which changes count that change calls in which nothing failed, and the same where
only calls with a cache are wrong: then single tokens have to stay as they are."""

_IN_HALF = "autocast_agrees"
"""It runs a case of any dtype in half types."""

Trial = tuple[Invariant, Case]


class Place(NamedTuple):
    """A change of a definition in a file."""

    source: SourceFile
    definition: Any
    edit: Edit

    @property
    def line(self) -> tuple[str, int]:
        """The file and the first line that change."""
        return self.source.name, self.edit.start[0]


class Judge:
    """Decides whether what failed holds with a change, and nothing else fails.

    Args:
        subject, invariants: as in :func:`mends`.
        failing: what fails, the quickest first.
        beside: as in :func:`mends`.

    Attributes:
        most: the rank up to which changes count that change calls in which nothing failed.
    """

    def __init__(
        self,
        subject: Subject,
        invariants: Iterable[Invariant],
        failing: Sequence[Trial],
        beside: Sequence[str],
    ) -> None:
        self._subject, self._failing = subject, failing
        names = {invariant.name for invariant, _ in failing}
        schedule = _schedule(subject, (one for one in invariants if one.name not in names))
        self._others = [trial for trial in schedule if holds(subject, *trial) is not False]
        self._seen = list[Trial]()  # those that failed with a change
        self.most = _MOST_RANK if names - {*beside} else SMALLEST
        wrong = [invariant for invariant, _ in failing if invariant.name not in beside]
        told = {call: {holds(subject, one, subject.legal(call)) for one in wrong} for call in CALLS}
        plain = [False in told[call] for call in CALLS if call.mask == "none"]
        most = plain[0] and sum(plain) > len(plain) / 2  # it may hold by chance
        is_wrong = most or all(plain[1:])
        right = [call for call in CALLS if False not in told[call] and not is_wrong]
        self._right = dict(kept(partial(output, subject, call) for call in right))
        self._steps = dict(kept([partial(steps, subject)]))
        self._influences = influences(subject)
        if self._steps and not names - {*beside}:
            self.most = _MOST_RANK_OF_STEPS
        if all(_is_narrow_alone(subject, *trial) for trial in failing):
            self.most = 0  # what is right in wider types stays so

    def approves(self, place: Place, *, others: bool = False, briefly: bool = False) -> bool | None:
        """Whether what failed holds with a change, and nothing else fails.

        ``None`` if nothing was tried, as it changes calls in which nothing failed. Where it may
        change these, it may not change the tokens that a layer with a cache is given one by one.

        Args:
            place: the change.
            others: whether it may change such calls.
            briefly: whether it is enough that what failed holds where it did.
        """
        lines = place.edit.applied(place.source.lines)
        with place.source.running(place.definition, lines) as runs:
            if not runs:
                return False
            for cache in _caches():
                cache.cache_clear()
            if not others and not _are_kept(self._right):
                return None
            if (others and not _are_kept(self._steps)) or not self._most_hold():
                return False
            return briefly or (
                self._others_hold(self._seen)
                and all(self._passes(invariant) for invariant, _ in self._failing)
                and self._others_hold(self._others)
                and self._influences <= influences(self._subject)  # or nothing may be left to fail
            )

    def _most_hold(self) -> bool:
        """Whether properties hold where they failed, but for one of three or more.

        That may be a smallest counterexample of something else, as of what overflows: whether its
        property passes its quick check is seen later. So is whether other programs of calls hold
        than those that failed so far.
        """
        left, held = min(1, len(self._failing) // _OTHERWISE), 0
        for verdict in self.tried_again():
            left, held = left - (verdict is False), held + bool(verdict)
            if left < 0:
                return False
        return held > 0

    def ordinary_again(self) -> None:
        """Make ordinary calls."""
        for call in CALLS:
            output(self._subject, call)

    def tried_again(self) -> Iterator[bool | None]:
        """Yield whether what failed holds, one after the other."""
        with effort_of(replace(current_effort(), only_failed=True)):
            for trial in self._failing:
                yield holds(self._subject, *trial)

    def _others_hold(self, trials: Iterable[Trial]) -> bool:
        """Whether nothing else fails; what does is tried early next time, as it often does."""
        for trial in trials:
            if holds(self._subject, *trial) is False:
                self._seen = [trial, *(one for one in self._seen if one != trial)]
                return False
        return True

    def _passes(self, invariant: Invariant) -> bool:
        """Whether a property passes its whole quick check; where it fails is tried early too."""
        outcome = run_invariant(
            self._subject, invariant, PROFILES["quick"], shrink=False, explain=False
        )
        if outcome.counterexample is not None:
            trial = invariant, Case.from_id(outcome.counterexample)
            self._seen = [trial, *(one for one in self._seen if one != trial)]
        return outcome.ok


def _is_narrow_alone(subject: Subject, invariant: Invariant, case: Case) -> bool:
    """Whether a property fails in half types, and holds at the same case in float32."""
    if invariant.name == _IN_HALF:
        return True
    if not case.is_narrow or "float32" not in subject.dtypes:
        return False
    return holds(subject, invariant, case.replace(dtype="float32")) is True


def _are_kept(outputs: Mapping[Ordinary, Tensor]) -> bool:
    return all(is_near(call(), output) for call, output in outputs.items())


@functools.cache
def _caches() -> tuple[Any, ...]:
    """What keeps answers of subjects between checks."""
    modules = [m for name, m in sys.modules.items() if name.startswith("attnbench.invariants")]
    values = (value for module in modules for value in vars(module).values())
    return tuple(value for value in values if hasattr(value, "cache_clear"))


def holds(subject: Subject, invariant: Invariant, case: Case) -> bool | None:
    """Whether a property holds at a case; ``None`` if nothing is said there."""
    try:
        with limited(_TRIAL_SECONDS):
            if subject.unsupported(case) is not None:
                return None
            invariant.check(subject, case)
    except (RefusalError, UnsatisfiedAssumption):
        return None
    except (Exception, SystemExit, TooLong):
        return False
    return True


def _schedule(subject: Subject, invariants: Iterable[Invariant]) -> list[Trial]:
    """Some cases of each property, spread over its schedule."""
    found: list[Trial] = []
    for invariant in invariants:
        if invariant.name in COMPILING or skip_reason(subject, invariant) is not None:
            continue
        legal = [
            case
            for part in space_of((invariant.cases or cases)(subject)).parts
            for raw in part.scheduled(0, brief=True)
            if (case := part.finished(raw)) is not None and case.q_len * case.kv_len <= _MOST_PAIRS
        ]
        step = -(-len(legal) // _CASES) or 1
        found += [(invariant, case) for case in legal[::step]]
    return found
