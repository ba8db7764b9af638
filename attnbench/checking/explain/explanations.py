"""The explanations of subjects that failed, each looked for in child processes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attnbench.checking.explain.leading import lead_of
from attnbench.checking.outcomes import Outcome
from attnbench.checking.work import Work, key_of
from attnbench.processes.pool import Event, Task
from attnbench.specs import Clue

_MODULE = "attnbench.checking.explain.explaining"
_CORE_SECONDS = 60.0
_PLUGIN_SECONDS = 10.0
"""Most seconds of a plugin's explainer, with the import of the subject."""

_Key = tuple[str, int | None]


@dataclass
class _Held:
    """The outcomes of a subject that failed, while what explains them is looked for.

    Args:
        key: the subject and the seed.
        outcomes: the failures.
        last: its last outcome, which waits.
        running: how many tasks have not ended.
    """

    key: _Key
    outcomes: list[Outcome]
    last: Outcome
    running: int = 1
    notes: list[str] = field(default_factory=list)


class Explanations:
    """Outcomes as they come, the last one of each subject behind what explains its failures.

    Args:
        works: what is checked.
        recorded: outcomes of an earlier run.
        submit: starts a task in the pool.
        memory_gib: most memory of a process, in GiB.
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
        self._failures: dict[_Key, list[Outcome]] = defaultdict(list)
        self._held: dict[str, _Held] = {}
        self._withdrawn: set[tuple[str, int | None, str]] = set()
        for outcome in recorded:
            self._note(outcome)

    def _note(self, outcome: Outcome) -> _Key:
        key = outcome.subject, outcome.seed
        if outcome.failure is not None and outcome.failure.case is not None:
            self._failures[key].append(outcome)
        return key

    def passed_on(self, outcome: Outcome) -> Iterator[Outcome]:
        """Yield an outcome, unless it is the last one of a subject that failed."""
        key = self._note(outcome)
        self._left[key] -= 1
        if self._left[key] or not self._failures[key]:
            yield outcome
            return
        held = _Held(key, self._failures[key], outcome)
        self._start(held, f"{_MODULE}:explanation", _CORE_SECONDS)

    def _start(self, held: _Held, function: str, timeout_s: float, **given: str) -> None:
        name = f"explain {len(self._held)}"
        self._held[name] = held
        arguments = {"target": self._targets[held.key], "outcomes": held.outcomes, **given}
        self._submit(Task(name, function, arguments, timeout_s, self._memory_gib))

    def withdraw(self, outcome: Outcome) -> Outcome:
        """Note that an outcome takes the place of an earlier one, which no longer counts."""
        self._withdrawn.add(key_of(outcome))
        return outcome

    def is_answered_by(self, event: Event) -> bool:
        """Whether an event is one of an explanation."""
        return event.task.name in self._held

    def answered(self, event: Event) -> Iterator[Outcome]:
        """Yield the outcome that waited, and the failures, once nothing more explains them."""
        held = self._held[event.task.name]
        plugin = event.task.arguments.get("plugin")
        if event.kind == "value":
            self._take(held, event.value)
            return
        held.running -= 1
        if event.kind != "done" and plugin is not None:
            held.notes.append(f"the explainer of plugin {plugin} was cut off: {event.reason}")
        if held.running:
            return
        outcomes = {key_of(outcome): outcome for outcome in (held.last, *held.outcomes)}
        lead = key_of(lead_of(held.outcomes))
        note = "; ".join(filter(None, (outcomes[lead].note, *held.notes)))
        outcomes[lead] = replace(outcomes[lead], note=note)
        last = outcomes.pop(key_of(held.last))
        yield from (o for o in (*outcomes.values(), last) if key_of(o) not in self._withdrawn)

    def _take(self, held: _Held, value: list[Any] | str) -> None:
        """Keep what a task has found: a note, or outcomes, clues, or names of plugins."""
        if isinstance(value, str):
            held.notes.append(value)
            return
        for one in value:
            if isinstance(one, str):
                held.running += 1
                self._start(held, f"{_MODULE}:clues_of", _PLUGIN_SECONDS, plugin=one)
        outcomes = [one for one in value if isinstance(one, Outcome)]
        held.outcomes[:] = outcomes or held.outcomes
        clues = tuple(one for one in value if isinstance(one, Clue))
        place = held.outcomes.index(lead_of(held.outcomes))
        lead = held.outcomes[place]
        if clues and lead.failure is not None:
            failure = replace(lead.failure, clues=(*lead.failure.clues, *clues))
            held.outcomes[place] = replace(lead, failure=failure)
