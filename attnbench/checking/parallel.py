"""Run the invariants of a check in child processes, one subject per process."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnbench.checking.canaries import CANARY, Canaries, choose_invariant
from attnbench.checking.explain.explanations import Explanations
from attnbench.checking.outcomes import COMPILING, KEEPS_CONTRACT, Outcome
from attnbench.checking.work import RESTARTS, Work, key_of, remaining_works, shared_out
from attnbench.processes.cluster import ClusterWorkers
from attnbench.processes.pool import Event, Task, Workers

_CHECK_IMPORTS = (
    "attnbench.checking.api",
    "torch.fx.experimental.symbolic_shapes",
    "attnbench.checking.warmup",
)
"""Imports of a check, which take 1 to 2 s per child, including those at the first use."""

_TRACING_IMPORTS = ("torch._dynamo", *_CHECK_IMPORTS)
"""The same with the tracer of calls, which takes 1 s more per child."""

PRELOAD = ("torch._inductor.compile_fx", *_TRACING_IMPORTS)
"""The same with the compiler, which takes another second per child."""

_STATUSES = {"raised": "error", "done": "crashed"}
"""What an event says of the invariants that did not run, unless its kind does."""

_FEW_SUBJECTS = 2

_PIECES = 4
"""Pieces of work per worker of a cluster, if there are enough."""


def preload(subjects: int | None, invariants: Collection[str] | None = None) -> tuple[str, ...]:
    """The imports of the server process, from which children are forked.

    Args:
        subjects: number of named addresses; ``None`` if all installed subjects are checked. With
            few subjects the compiler is left out: their children import it when they compile, last.
        invariants: names of the invariants to run, if not all.
    """
    if subjects is not None and subjects <= _FEW_SUBJECTS:
        return _CHECK_IMPORTS
    return PRELOAD if not invariants or set(COMPILING) & set(invariants) else _TRACING_IMPORTS


def run_checks(
    works: Sequence[Work],
    options: Mapping[str, Any],
    *,
    jobs: int,
    timeout_s: float,
    memory_gib: float,
    cluster: str | ClusterWorkers | None = None,
    recorded: Collection[Outcome] = (),
) -> Generator[Outcome, None, None]:
    """Run works and yield outcomes as they come, one for each subject, invariant and seed.

    If the canary of a process does not fail, its outcomes are yielded again, as crashed ones that
    replace the first. The failures of a subject are yielded again, with what explains them, before
    its last outcome.

    Args:
        works: the works.
        options: further arguments of :func:`attnbench.checking.api.outcomes`.
        jobs: number of processes; 0 for one per core.
        timeout_s: most seconds for an invariant.
        memory_gib: most memory of a subject's process, in GiB.
        cluster: cluster to run on instead of this machine, see :class:`ClusterWorkers`; an open one
            stays open.
        recorded: outcomes of an earlier run, which are neither run nor yielded again.
    """
    pending: dict[str, Work] = {}
    canaries = Canaries()
    works = remaining_works(works, recorded)
    if not works:
        return
    with _workers(cluster, jobs) as workers:
        if isinstance(workers, ClusterWorkers):  # small pieces, so that losing one costs little
            jobs = _PIECES * workers.count
        works = shared_out(works, jobs)

        def submit(number: str, work: Work) -> None:
            pending[number] = work
            canary = choose_invariant(work.invariants)
            canaries.expect(number, canary)
            arguments = {
                "target": work.target,
                "invariants": work.invariants,
                "seed": work.seed,
                "canary": canary,
                **options,
            }
            function = "attnbench.checking.api:outcomes"
            workers.submit(
                Task(number, function, arguments, timeout_s=timeout_s, memory_gib=memory_gib)
            )

        for number, work in enumerate(works):
            submit(str(number), work)
        keys = {key_of(outcome) for outcome in recorded}
        explanations = Explanations(works, recorded, workers.submit, memory_gib)
        for event in workers.events():
            if explanations.is_answered_by(event):
                yield from explanations.answered(event)
                continue
            if event.kind == "value" and event.value.subject == CANARY:
                canaries.note(event.task.name, event.value)
                continue
            work = pending[event.task.name]
            if event.kind == "done" or (event.kind != "value" and not work.invariants):
                yield from map(explanations.withdraw, canaries.void(event.task.name))
            seed = work.seed
            for result in _outcomes(event, pending, submit):
                outcome = replace(result, seed=seed)
                canaries.note(event.task.name, outcome)
                if key_of(outcome) not in keys:  # each part of a subject runs the contract
                    yield from explanations.passed_on(outcome)
                keys.add(key_of(outcome))


@contextlib.contextmanager
def _workers(cluster: str | ClusterWorkers | None, jobs: int) -> Iterator[Workers | ClusterWorkers]:
    if isinstance(cluster, ClusterWorkers):
        try:
            yield cluster
        finally:
            cluster.cancel()
        return
    with Workers(jobs) if cluster is None else ClusterWorkers(cluster, preload=PRELOAD) as workers:
        yield workers


def _outcomes(
    event: Event, pending: dict[str, Work], submit: Callable[[str, Work], None]
) -> Iterator[Outcome]:
    number = event.task.name
    work = pending[number]
    if event.kind == "value":
        outcome: Outcome = event.value
        rest = tuple(name for name in work.invariants if name != outcome.invariant)
        is_broken = (outcome.invariant, outcome.status) == (KEEPS_CONTRACT, "failed")
        pending[number] = replace(work, invariants=rest, broken=work.broken or is_broken)
        yield _with_command(replace(outcome, subject=work.label), event.task)
        return
    if not work.invariants:
        return
    status, rest = _STATUSES.get(event.kind, event.kind), work.invariants
    if event.kind == "done":  # it ended early
        place = "after one that made its device unusable"
    else:
        invariant, *_ = rest
        rest, place = rest[1:], f"in {invariant}"
        seconds = event.task.timeout_s if status == "timeout" else 0.0
        reason = event.reason + "; --memory of attnbench check sets it" * event.over_memory
        ending = Outcome(work.label, invariant, status, reason, seconds=seconds)
        yield _with_command(ending, event.task)
    if event.kind == "raised" or not work.restarts:
        reason = f"not run: {RESTARTS + 1} processes of the subject ended, the last {place}"
        if event.kind == "raised":
            reason = f"not run, for the reason given at {invariant}"
        for name in rest:
            yield Outcome(work.label, name, status, reason)
    elif rest:
        submit(number, replace(work, invariants=rest, restarts=work.restarts - 1))


def _with_command(outcome: Outcome, task: Task) -> Outcome:
    """Add the command that runs the check of an outcome again."""
    if outcome.ok:
        return outcome
    arguments = task.arguments
    words = ["attnbench", "check", str(arguments["target"]), "--invariant", outcome.invariant]
    words += ["--profile", arguments["profile"]]
    words += ["--seed", str(arguments["seed"])] if arguments["seed"] is not None else []
    words += ["--device", arguments["device"]] if arguments["device"] != "cpu" else []
    words += [word for name in arguments["dtypes"] or () for word in ("--dtype", name)]
    words += ["--case", outcome.counterexample] if outcome.counterexample else []
    return replace(outcome, command=shlex.join(words))
