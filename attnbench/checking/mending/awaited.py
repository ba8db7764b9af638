"""The last outcome of a subject that fails waits until a change of its source was looked for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from attnbench.cases.case import Case
from attnbench.checking.cause.failing_calls import fails_narrow, raises_narrow
from attnbench.checking.known_causes import known_causes
from attnbench.checking.outcomes import COMPILING, Outcome
from attnbench.checking.work import Work, key_of
from attnbench.processes.pool import Event, Task

_FUNCTION = "attnbench.checking.mending.search:mends_of"

_SECONDS = 60.0
"""Most seconds of a search by the clock, to the first change and to the next one."""

_BESIDE = (
    "empty_calls_are_harmless",
    "tree_paths_equal_their_sequences",
    "absorbed_equals_expanded",
    "chunked_equals_recurrent",
)
"""What compares other calls with ordinary ones."""

_UNUSED = "parameter_without_effect"
"""What a missing gradient says of the output itself."""

_Key = tuple[str, int | None]


class AwaitedMends:
    """Outcomes as they come, the last one of each subject behind a search if any has failed.

    Args:
        works: what is checked.
        recorded: outcomes of an earlier run.
        submit: starts a task in the pool.
        memory_gib: most memory of a search, in GiB.
    """

    def __init__(
        self,
        works: Sequence[Work],
        recorded: Collection[Outcome],
        submit: Callable[[Task], object],
        memory_gib: float,
    ) -> None:
        self._submit, self._memory_gib = submit, memory_gib
        self._targets = {(work.label, work.seed): work.target for work in works}
        known = set(map(key_of, recorded))
        keys = {(work.label, work.seed, name) for work in works for name in work.invariants}
        self._left = Counter((label, seed) for label, seed, _ in keys - known)
        self._failing: dict[_Key, list[Outcome]] = defaultdict(list)
        self._held: dict[str, tuple[_Key, Outcome, list[str]]] = {}
        self._withdrawn: set[tuple[str, int | None, str]] = set()
        for outcome in recorded:
            self._note(outcome)

    def _note(self, outcome: Outcome) -> _Key:
        key = outcome.subject, outcome.seed
        if not outcome.ok:
            self._failing[key].append(outcome)
        return key

    def passed_on(self, outcome: Outcome) -> Iterator[Outcome]:
        """Yield an outcome, unless it is the last one and a search begins."""
        key = self._note(outcome)
        self._left[key] -= 1
        if self._left[key] or not _can_be_mended(self._failing[key]):
            yield outcome
            return
        name = f"mend {len(self._held)}"
        self._held[name] = key, outcome, []
        failing = self._failing[key]
        told = [o for o in failing if not raises_narrow(o.failure)] or failing
        arguments = {
            "target": self._targets[key],
            "failures": [(o.invariant, o.counterexample) for o in told],
            "beside": [o.invariant for o in filter(_is_beside, told)],
            "wide": len(told) < len(failing),
        }
        self._submit(
            Task(name, _FUNCTION, arguments, timeout_s=_SECONDS, memory_gib=self._memory_gib)
        )

    def withdraw(self, outcome: Outcome) -> Outcome:
        """Note that an outcome takes the place of an earlier one, which no longer counts."""
        self._withdrawn.add(key_of(outcome))
        return outcome

    def is_answered_by(self, event: Event) -> bool:
        """Whether an event is one of a search."""
        return event.task.name in self._held

    def answered(self, event: Event) -> Iterator[Outcome]:
        """Yield the outcome that waited when a search ends, and a failure with what it found."""
        key, last, found = self._held[event.task.name]
        if event.kind == "value":
            found.append(event.value)
            return
        *_, shown = self._failing[key]
        assert shown.failure is not None
        outcomes = [last]
        if found:
            mended = replace(shown, failure=replace(shown.failure, mends=tuple(found)))
            outcomes = [mended] if shown is last else [mended, last]
        yield from (one for one in outcomes if key_of(one) not in self._withdrawn)


def _is_beside(outcome: Outcome) -> bool:
    """Whether a failure does not show an ordinary call to be wrong.

    It is of calls with a cache or an option, of gradients, of half types alone, or of what is not
    finite. One of a mask may be of calls without: where the number of keys counts, both differ.
    """
    failure = outcome.failure
    assert failure is not None
    is_special = outcome.invariant in _BESIDE or outcome.invariant in known_causes()["accepts"]
    is_gradient = "gradient" in outcome.invariant + failure.quantity and failure.named != _UNUSED
    is_nan = failure.got != failure.got or (failure.named or "").startswith("nan")
    return bool(failure.program) or is_gradient or is_special or is_nan or fails_narrow(failure)


def _can_be_mended(outcomes: Sequence[Outcome]) -> bool:
    """Whether there are failures, and each can be tried again on the CPU in a moment."""
    return bool(outcomes) and all(
        outcome.failure is not None
        and outcome.invariant not in COMPILING
        and outcome.failure.case is not None
        and Case.from_id(outcome.failure.case).device == "cpu"
        for outcome in outcomes
    )
