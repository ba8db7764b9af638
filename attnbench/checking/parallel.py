"""Run the invariants of a check in child processes, one subject per process."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnbench.checking.canaries import CANARY, Canaries, choose_invariant
from attnbench.checking.outcomes import COMPILING, CONTRACT, Outcome
from attnbench.checking.works import RESTARTS, Work, key_of, shared_out, without
from attnbench.processes.cluster import ClusterWorkers
from attnbench.processes.pool import Event, Task, Workers

_FIRST = (
    "attnbench.checking.child_checks",
    "torch.fx.experimental.symbolic_shapes",
    "attnbench.checking.warmup",
)
"""Imports of a check, which take 1 to 2 s per child, including those at the first use."""

_TRACING = ("torch._dynamo", *_FIRST)
"""The same with what traces calls, which takes 1 s more per child."""

PRELOAD = ("torch._inductor.compile_fx", *_TRACING)
"""The same with the compiler, which takes another second per child."""

_FEW = 2

_PIECES = 4
"""Pieces of work per worker of a cluster, if there are enough."""


def preload(subjects: int | None, invariants: Collection[str] | None = None) -> tuple[str, ...]:
    """The imports of the server process, from which children are forked.

    Args:
        subjects: number of named addresses; ``None`` if all installed subjects are checked. With
            few subjects the compiler is left out: their children import it when they compile, last.
        invariants: names of the invariants to run, if not all.
    """
    if subjects is not None and subjects <= _FEW:
        return _FIRST
    return PRELOAD if not invariants or set(COMPILING) & set(invariants) else _TRACING


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

    An outcome is yielded again, and then replaces the first, if it turns out later that nothing
    which its process said counts.

    Args:
        works: the works.
        options: further arguments of :func:`attnbench.checking.child_checks.outcomes`.
        jobs: number of processes; 0 for one per core.
        timeout_s: most seconds for an invariant.
        memory_gib: most memory of a subject's process, in GiB.
        cluster: cluster to run on instead of this machine, see :class:`ClusterWorkers`; an open one
            stays open.
        recorded: outcomes of an earlier run, which are neither run nor yielded again.
    """
    left: dict[str, Work] = {}
    canaries = Canaries()
    works = without(works, recorded)
    if not works:
        return
    with _workers(cluster, jobs) as workers:
        if isinstance(workers, ClusterWorkers):  # small pieces, so that losing one costs little
            jobs = _PIECES * workers.count
        works = shared_out(works, jobs)

        def submit(number: str, work: Work) -> None:
            left[number] = work
            canary = choose_invariant(work.invariants)
            canaries.expect(number, canary)
            arguments = {
                "target": work.target,
                "invariants": work.invariants,
                "seed": work.seed,
                "canary": canary,
                **options,
            }
            function = "attnbench.checking.child_checks:outcomes"
            workers.submit(
                Task(number, function, arguments, timeout_s=timeout_s, memory_gib=memory_gib)
            )

        for number, work in enumerate(works):
            submit(str(number), work)
        seen = {key_of(outcome) for outcome in recorded}
        for event in workers.events():
            if event.kind == "value" and event.value.subject == CANARY:
                canaries.note(event.task.name, event.value)
                continue
            work = left[event.task.name]
            if event.kind == "done" or (event.kind != "value" and not work.invariants):
                yield from canaries.void(event.task.name)
            seed = work.seed
            for found in _outcomes(event, left, submit):
                outcome = replace(found, seed=seed)
                canaries.note(event.task.name, outcome)
                if key_of(outcome) not in seen:  # each part of a subject runs the contract
                    yield outcome
                seen.add(key_of(outcome))


@contextlib.contextmanager
def _workers(cluster: str | ClusterWorkers | None, jobs: int) -> Iterator[Workers | ClusterWorkers]:
    if isinstance(cluster, ClusterWorkers):
        try:
            yield cluster
        finally:
            cluster.cancel()
        return
    with Workers(jobs) if cluster is None else ClusterWorkers(cluster, preload=PRELOAD) as found:
        yield found


def over_seeds(found: Sequence[Outcome]) -> list[Outcome]:
    """Merge the outcomes of several seeds to one per subject and invariant.

    The first bad one, in the order of the seeds, stands for all; for good ones, cases and seconds
    are summed.
    """
    groups: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in found:
        groups.setdefault((outcome.subject, outcome.invariant), []).append(outcome)
    return [_merged(sorted(group, key=lambda one: one.seed or 0)) for group in groups.values()]


def _merged(group: list[Outcome]) -> Outcome:
    if len(group) == 1:
        return group[0]
    bad = [outcome for outcome in group if not outcome.ok]
    passed = [outcome for outcome in group if outcome.status == "passed"]
    one = (bad or passed or group)[0]
    on = one.reason
    if bad:
        on += f"\n  on {len(bad)} of {len(group)} seeds"
    elif passed:
        on += f", on the first of {len(passed)} seeds"
    cases, seconds = sum(o.cases for o in group), sum(o.seconds for o in group)
    return replace(one, reason=on, cases=cases, seconds=seconds)


def _outcomes(
    event: Event, left: dict[str, Work], submit: Callable[[str, Work], None]
) -> Iterator[Outcome]:
    number = event.task.name
    work = left[number]
    if event.kind == "value":
        outcome: Outcome = event.value
        rest = tuple(name for name in work.invariants if name != outcome.invariant)
        broken = work.broken or (outcome.invariant == CONTRACT and outcome.status == "failed")
        left[number] = replace(work, invariants=rest, broken=broken)
        yield _repeatable(replace(outcome, subject=work.label), event.task)
        return
    if event.kind == "done" or not work.invariants:
        return
    status = "error" if event.kind == "raised" else event.kind
    current, rest = work.invariants[0], work.invariants[1:]
    seconds = event.task.timeout_s if status == "timeout" else 0.0
    reason = event.reason + "; --memory of attnbench check sets it" * event.over_memory
    ended = Outcome(work.label, current, status, reason, seconds=seconds)
    yield _repeatable(ended, event.task)
    if event.kind == "raised" or not work.restarts:
        reason = f"not run: {RESTARTS + 1} processes of the subject ended, the last in {current}"
        if event.kind == "raised":
            reason = f"not run, for the reason given at {current}"
        for name in rest:
            yield Outcome(work.label, name, status, reason)
    elif rest:
        submit(number, replace(work, invariants=rest, restarts=work.restarts - 1))


def _repeatable(outcome: Outcome, task: Task) -> Outcome:
    """Add the command that runs the check of an outcome again."""
    if outcome.ok:
        return outcome
    given = task.arguments
    words = ["attnbench", "check", str(given["target"]), "--invariant", outcome.invariant]
    words += ["--profile", given["profile"]]
    words += ["--seed", str(given["seed"])] if given["seed"] is not None else []
    words += ["--device", given["device"]] if given["device"] != "cpu" else []
    words += [word for name in given["dtypes"] or () for word in ("--dtype", name)]
    return replace(outcome, command=shlex.join(words))
