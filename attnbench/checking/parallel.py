"""Run the invariants of a check in child processes, one subject per process."""

from __future__ import annotations

import secrets
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attnbench.checking.outcomes import (
    CANARY,
    CHANGED,
    COMPILING,
    KEEPS_CONTRACT,
    Outcome,
    lead_of,
    running_order,
)
from attnbench.errors import first_line
from attnbench.processes.cluster import ClusterWorkers
from attnbench.processes.pool import Event, Task, Workers, cores
from attnbench.registry.address import Address

_CHECK_IMPORTS = (
    "attnbench.checking.api",
    "torch.fx.experimental.symbolic_shapes",
    "attnbench.processes.warmup",
)
"""Imports of a check, which take 1 to 2 s per child, including those at the first use."""

PRELOAD = ("torch._inductor.compile_fx", "torch._dynamo", *_CHECK_IMPORTS)
"""The same with the compiler, which takes two more seconds per child."""

_OUTCOMES = "attnbench.checking.api:outcomes"
_EXPLANATIONS = "attnbench.checking.api:explanations_of"

_STATUSES = {"raised": "error", "done": "crashed"}
"""What an event says of the invariants that did not run, unless its kind does."""

_FEW_SUBJECTS, _PIECES, _RESTARTS = 2, 4, 1
"""What counts as few; pieces of work per worker of a cluster, if there are enough; and how often a
subject's process is restarted after it ended in an invariant."""

_VIOLATIONS = (
    KEEPS_CONTRACT,
    "autocast_agrees",
    "copies_agree",
    "gradient_modes_agree",
    "gradients_are_right",
    "layouts_agree",
)
"""Invariants that a canary of each kind violates, at a cost of some milliseconds."""

_NO_CANARY = CHANGED.format(
    "the process that checked it did not fail a subject that is known to be wrong"
)


@dataclass(frozen=True)
class Work:
    """One subject, and the invariants that still have to run on it.

    Args:
        target: address of this subject alone.
        invariants: names of the invariants, in order.
        label: name of the subject in its outcomes.
        restarts: how often it may be restarted.
        seed: seed of the drawn cases.
    """

    target: Address
    invariants: tuple[str, ...]
    label: str
    restarts: int = _RESTARTS
    seed: int | None = None


def works_of(
    pairs: Sequence[tuple[Address, str]],
    invariants: Sequence[str],
    of_subject: Mapping[str, Sequence[str]] | None = None,
) -> list[Work]:
    """Make a work for each address and subject; ambiguous names are labelled with the address."""
    count = Counter(subject for _, subject in pairs)
    works = []
    for target, subject in pairs:
        names = [n for n in invariants if of_subject is None or n in of_subject[subject]]
        names.sort(key=running_order)
        label = subject if count[subject] == 1 else f"{subject} of {target}"
        works.append(Work(target, tuple(names), label))
    return works


def shared_out(works: Sequence[Work], jobs: int) -> list[Work]:
    """Split works into parts if there are too few to keep all jobs busy.

    Each part begins with the contract, which decides whether to run the others.
    """
    parts = (jobs or cores()) // max(1, len(works))
    if parts < 2:
        return list(works)
    pieces = []
    for work in works:
        contract = tuple(name for name in work.invariants if name == KEEPS_CONTRACT)
        others = [name for name in work.invariants if name != KEEPS_CONTRACT]
        shares = [(*contract, *others[part::parts]) for part in range(min(parts, len(others)))]
        pieces += [replace(work, invariants=share) for share in shares] or [work]
    return pieces


def choose_canary(invariants: Sequence[str]) -> str | None:
    """Choose at random the invariant that a canary must violate; ``None`` if none is checked.

    The code under test runs in the process that checks it, where it can replace invariants, and
    also what looks for such changes. Each process therefore checks a subject last that is known to
    be wrong, and this one, which the code cannot reach, expects that it fails.
    """
    names = [name for name in invariants if name in _VIOLATIONS]
    return secrets.choice(names) if names else None


def preload(subjects: int | None, invariants: Collection[str] | None = None) -> tuple[str, ...]:
    """The imports of the server process, from which children are forked.

    Args:
        subjects: number of named addresses; ``None`` if all installed subjects are checked. With
            few subjects the compiler is left out: their children import it when they compile, last.
        invariants: names of the invariants to run, if not all.
    """
    is_few = subjects is not None and subjects <= _FEW_SUBJECTS
    return _CHECK_IMPORTS if is_few or (invariants and COMPILING not in invariants) else PRELOAD


def run_checks(
    works: Sequence[Work],
    options: Mapping[str, Any],
    *,
    jobs: int,
    timeout_s: float,
    memory_gib: float,
    cluster: str | None = None,
    explainers: Sequence[str] = (),
) -> Generator[Outcome, None, None]:
    """Run works and yield outcomes as they come, one for each subject and invariant.

    If the canary of a process does not fail, its outcomes are yielded again, as crashed ones that
    replace the first. Failures are yielded again with what explains them, before the last outcome
    of their subject.

    Args:
        works: the works.
        options: further arguments of :func:`attnbench.checking.api.outcomes`.
        jobs: number of processes; 0 for one per core.
        timeout_s: most seconds for an invariant.
        memory_gib: most memory of a subject's process, in GiB.
        cluster: cluster to run on instead of this machine, see :class:`ClusterWorkers`.
        explainers: names of the plugins that explain failures.
    """
    works = [work for work in works if work.invariants]
    if not works:
        return
    with Workers(jobs) if cluster is None else ClusterWorkers(cluster, preload=PRELOAD) as workers:
        if isinstance(workers, ClusterWorkers):  # small pieces, so that losing one costs little
            jobs = _PIECES * workers.count
        limits = {"timeout_s": timeout_s, "memory_gib": memory_gib}
        yield from _Run(workers, works, options, limits, explainers).outcomes(jobs)


class _Run:
    """Pieces of work in processes, and what they have said so far."""

    def __init__(
        self,
        workers: Workers | ClusterWorkers,
        works: Sequence[Work],
        options: Mapping[str, Any],
        limits: Mapping[str, Any],
        explainers: Sequence[str],
    ) -> None:
        self.workers, self.works, self.options = workers, works, options
        self.limits, self.explainers = limits, explainers
        self.canaries: dict[str, str | None] = {}  # those that a task has to fail yet
        self.said: dict[str, list[Outcome]] = {}  # by the name of a task
        self.explaining: dict[str, list[str]] = {}  # who has still to explain a subject, in turn
        self.pieces: dict[str, Work] = {}  # what is left of each, by the name of its task
        self.left = {work.label: {*work.invariants} for work in works}
        self.failures: dict[str, dict[str, Outcome]] = defaultdict(dict)
        self.held: dict[str, Outcome] = {}  # the last outcome of a subject, while it is explained
        self.running = Counter[str]()  # tasks of a subject that have not ended

    def outcomes(self, jobs: int) -> Iterator[Outcome]:
        """Run all pieces, and yield outcomes as they come."""
        for number, work in enumerate(shared_out(self.works, jobs)):
            self._start(str(number), work)
        for event in self.workers.events():
            name = event.task.name
            label = self.pieces[name].label if name in self.pieces else name
            if name in self.pieces:
                yield from self._taken(event)
            else:
                self._explain(event)
            if event.kind == "value":
                continue
            self.running[label] -= 1
            if not self.running[label] and label in self.held and not self._asks(label):
                told, last = self.failures[label], self.held.pop(label)
                yield from (o for o in told.values() if o.invariant != last.invariant)
                yield told.get(last.invariant, last)

    def _start(self, number: str, work: Work) -> None:
        """Submit the task of a piece of work."""
        self.pieces[number] = work
        canary = self.canaries[number] = choose_canary(work.invariants)
        self.said[number] = []
        self.running[work.label] += 1
        arguments = {
            "target": work.target,
            "invariants": work.invariants,
            "seed": work.seed,
            "canary": canary,
            **self.options,
        }
        self.workers.submit(Task(number, _OUTCOMES, arguments, **self.limits))

    def _taken(self, event: Event) -> Iterator[Outcome]:
        """The outcomes that an event of a piece of work brings, but the last one of a subject."""
        name, work = event.task.name, self.pieces[event.task.name]
        if event.kind != "value":
            if self.canaries[name] and (event.kind == "done" or not work.invariants):
                yield from self._voided(name, work.label)
            for outcome in self._ended(event, work):
                yield from self._passed_on(replace(outcome, seed=work.seed))
            return
        if event.value.subject == CANARY:
            if (event.value.invariant, event.value.status) == (self.canaries[name], "failed"):
                self.canaries[name] = None
            return
        outcome = _with_command(replace(event.value, subject=work.label, seed=work.seed), event)
        rest = tuple(one for one in work.invariants if one != outcome.invariant)
        self.pieces[name] = replace(work, invariants=rest)
        is_new = outcome.invariant in self.left[work.label]
        if is_new and outcome.failure is not None and outcome.failure.case is not None:
            self.failures[work.label][outcome.invariant] = outcome
        self.said[name].append(outcome)
        yield from self._passed_on(outcome)

    def _voided(self, name: str, label: str) -> Iterator[Outcome]:
        """The outcomes of a process that does not tell right from wrong, as crashed ones."""
        for outcome in self.said[name]:
            void = replace(outcome, status="crashed", reason=_NO_CANARY, note="")
            self.failures[label].pop(outcome.invariant, None)
            held = self.held.get(label)
            if held is not None and held.invariant == outcome.invariant:
                self.held[label] = void
            else:
                yield void

    def _passed_on(self, outcome: Outcome) -> Iterator[Outcome]:
        """Yield an outcome, once, unless it is the last one of its subject."""
        left = self.left[outcome.subject]
        if outcome.invariant not in left:  # each part of a subject runs the contract
            return
        left.remove(outcome.invariant)
        if left or outcome.subject in self.held:
            yield outcome
        else:
            self.held[outcome.subject] = outcome

    def _ended(self, event: Event, work: Work) -> Iterator[Outcome]:
        """The outcomes of what a process that ended has left; it may start another one."""
        rest = work.invariants
        if not rest:
            return
        status = _STATUSES.get(event.kind, event.kind)
        if event.kind == "done":  # it ended early
            place = "after one that made its device unusable"
        else:
            invariant, *_ = rest
            rest, place = rest[1:], f"in {invariant}"
            seconds = event.task.timeout_s if status == "timeout" else 0.0
            reason = event.reason + "; --memory of attnbench check sets it" * event.over_memory
            ending = Outcome(work.label, invariant, status, reason, seconds=seconds)
            yield _with_command(ending, event)
        if event.kind == "raised" or not work.restarts:
            reason = f"not run: {_RESTARTS + 1} processes of the subject ended, the last {place}"
            if event.kind == "raised":
                reason = f"not run, for the reason given at {invariant}"
            for name in rest:
                yield Outcome(work.label, name, status, reason)
        elif rest:
            left = replace(work, invariants=rest, restarts=work.restarts - 1)
            self._start(event.task.name, left)

    def _asks(self, label: str) -> bool:
        """Whether the failures of a subject are explained now, which they are once."""
        told = self.failures[label]
        if not told or label in self.explaining:
            return False
        self.explaining[label] = ["attnbench", *(f"plugin {name}" for name in self.explainers)]
        target = next(work.target for work in self.works if work.label == label)
        arguments = {
            "target": target,
            "outcomes": [*told.values()],
            "explainers": self.explainers,
        }
        self.workers.submit(Task(label, _EXPLANATIONS, arguments, **self.limits), first=True)
        self.running[label] += 1
        return True

    def _explain(self, event: Event) -> None:
        """Take the failures of a subject as explained, or add a line on who was cut off."""
        label = event.task.name
        if event.kind == "value":
            self.explaining[label].pop(0)
            self.failures[label] = {outcome.invariant: outcome for outcome in event.value}
        elif event.kind != "done":
            lead, whose = lead_of([*self.failures[label].values()]), self.explaining[label][0]
            reason = event.raised or first_line(event.reason)
            told = lead.noted(f"the explainer of {whose} was cut off: {reason}")
            self.failures[label][lead.invariant] = told


def _with_command(outcome: Outcome, event: Event) -> Outcome:
    """Add the command that runs the check of an outcome again."""
    if outcome.ok:
        return outcome
    arguments = event.task.arguments
    words = ["attnbench", "check", str(arguments["target"]), "--invariant", outcome.invariant]
    words += ["--profile", arguments["profile"]]
    words += ["--seed", str(arguments["seed"])] if arguments["seed"] is not None else []
    words += ["--device", arguments["device"]] if arguments["device"] != "cpu" else []
    words += [word for name in arguments["dtypes"] or () for word in ("--dtype", name)]
    words += ["--case", outcome.counterexample] if outcome.counterexample else []
    return replace(outcome, command=shlex.join(words))
