"""Failures that are run again alone, to tell which of them depend on earlier checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from attnbench.checking.outcomes import Outcome
from attnbench.processes.pool import Event, Task, Workers

_MOST = 3
"""Failures of a subject that are run again, since one that fails everywhere has a hundred."""

_ALONE = "\n  it fails only after earlier calls: alone, in a new process, this case passes"


class Reruns:
    """Failed outcomes whose invariant runs again alone, in a fresh process.

    Args:
        workers: the processes; those of a cluster run nothing again.
        timeout_s, memory_gib: limits of a run.
    """

    def __init__(self, workers: object, timeout_s: float, memory_gib: float) -> None:
        self._workers = workers if isinstance(workers, Workers) else None
        self._timeout_s, self._memory_gib = timeout_s, memory_gib
        self._waiting: dict[str, Outcome] = {}
        self._taken = Counter[str]()

    def __contains__(self, name: str) -> bool:
        return name in self._waiting

    def add(self, outcome: Outcome, task: Task) -> None:
        """Run a failure again alone, unless its subject has failed often enough."""
        told = outcome.status == "failed" and outcome.counterexample is not None
        if self._workers is None or not told or self._taken[outcome.subject] >= _MOST:
            return
        self._taken[outcome.subject] += 1
        given = task.arguments
        arguments = {
            **{name: given[name] for name in ("target", "profile")},
            "invariant": outcome.invariant,
            "case": outcome.counterexample,
        }
        name = f"{task.name} alone: {outcome.invariant}"
        self._waiting[name] = outcome
        function = "attnbench.checking.child_checks:fails_alone"
        self._workers.submit(
            Task(name, function, arguments, self._timeout_s, memory_gib=self._memory_gib)
        )

    def settled(self, event: Event) -> Iterator[Outcome]:
        """The outcome once more, which says so, if the run alone passed."""
        if event.kind == "value" and event.value is False:
            outcome = self._waiting[event.task.name]
            yield replace(outcome, reason=outcome.reason + _ALONE)
