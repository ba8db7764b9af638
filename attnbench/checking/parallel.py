"""Run the invariants of a check in child processes, one subject per process."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnbench.checking.outcomes import CONTRACT, Outcome
from attnbench.processes.cluster import ClusterWorkers
from attnbench.processes.pool import Event, Task, Workers, cores

__all__ = [
    "PRELOAD",
    "Work",
    "dealt",
    "digests",
    "key_of",
    "over_seeds",
    "preload",
    "run_checks",
    "without",
    "works_of",
]

_FIRST = (
    "attnbench.checking.api",
    "hypothesis.internal.conjecture.engine",
    "torch.fx.experimental.symbolic_shapes",
    "attnbench.checking.warmup",
)
"""Imports of a check, which take 1 to 2 s per child, including those at the first use."""

PRELOAD = ("torch._dynamo", "torch._inductor.compile_fx", *_FIRST)
"""The same with the compiler, which takes 2 s more per child."""

_FEW = 2

_PIECES = 4
"""Pieces of work per worker of a cluster, if there are enough."""

_RESTARTS = 1
"""How often a subject is restarted, after the invariant in which its process ended."""


def preload(subjects: int | None) -> tuple[str, ...]:
    """The imports of the server process, from which children are forked.

    Args:
        subjects: number of named addresses; ``None`` if all installed subjects are checked. With
            few subjects the compiler is left out: their children import it when they compile, last.
    """
    return _FIRST if subjects is not None and subjects <= _FEW else PRELOAD


@dataclass(frozen=True)
class Work:
    """One subject, and the invariants that still have to run on it.

    Args:
        target: address by which the child finds it.
        subject: name of the subject, since an address may resolve to several.
        invariants: names of the invariants, in order.
        label: name of the subject in its outcomes.
        late: names of invariants that run after the others have run on every subject.
        broken: whether the contract failed.
        restarts: how often it may be restarted.
        seed: seed of the drawn cases.
    """

    target: str
    subject: str
    invariants: tuple[str, ...]
    label: str
    late: tuple[str, ...] = ()
    broken: bool = False
    restarts: int = _RESTARTS
    seed: int | None = None


def works_of(
    pairs: Sequence[tuple[str, str]],
    invariants: Sequence[str],
    of_subject: Mapping[str, Sequence[str]] | None = None,
    *,
    late: Collection[str] = (),
) -> list[Work]:
    """Make a work for each address and subject; ambiguous names are labelled with the address.

    Args:
        pairs: addresses and names of subjects.
        invariants: names of the invariants, in order.
        of_subject: names of the invariants that apply to a subject, by its name; by default all.
        late: names of invariants that run after the others have run on every subject.
    """
    count = Counter(subject for _, subject in pairs)
    works = []
    for target, subject in pairs:
        names = [n for n in invariants if of_subject is None or n in of_subject[subject]]
        first = tuple(name for name in names if name not in late)
        last = tuple(name for name in names if name in late)
        label = subject if count[subject] == 1 else f"{subject} of {target}"
        works.append(Work(target, subject, first or last, label, late=last if first else ()))
    return works


def dealt(works: Sequence[Work], jobs: int) -> list[Work]:
    """Split works into parts if there are too few to keep all jobs busy.

    Each part begins with the contract, which decides whether to run the others.
    """
    parts = (jobs or cores()) // max(1, len(works))
    if parts < 2:
        return list(works)
    found = []
    for work in works:
        first = tuple(name for name in work.invariants if name == CONTRACT)
        rest = [name for name in work.invariants if name != CONTRACT]
        hands = [(rest[part::parts], work.late[part::parts]) for part in range(parts)]
        shares = [
            replace(work, invariants=(*first, *(hand or late)), late=late if hand else ())
            for hand, late in hands
            if hand or late
        ]
        found += shares or [work]
    return found


def digests(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """A digest of each addressed file, since outcomes depend on its content."""
    paths = {target.partition(".py:")[0] + ".py" for target, _ in pairs if ".py:" in target}
    return {
        path: hashlib.sha256(Path(path).read_bytes()).hexdigest()
        for path in sorted(paths)
        if Path(path).is_file()
    }


def without(works: Sequence[Work], recorded: Collection[Outcome]) -> list[Work]:
    """The works without the outcomes that an earlier run recorded.

    A contract that failed runs again before the remaining invariants, whose process must know it.
    """
    done = {key_of(outcome): outcome.status for outcome in recorded}

    def left(work: Work, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if (work.label, work.seed, name) not in done)

    found = []
    for work in works:
        now, late = left(work, work.invariants), left(work, work.late)
        broken = done.get((work.label, work.seed, CONTRACT)) == "failed"
        if now or late:
            first = (CONTRACT,) if broken else ()
            late, now = (late, now) if now else ((), late)
            found.append(replace(work, invariants=(*first, *now), late=late, broken=broken))
    return found


def key_of(outcome: Outcome) -> tuple[str, int | None, str]:
    """The subject, seed and invariant, which identify an outcome in a check."""
    return outcome.subject, outcome.seed, outcome.invariant


def run_checks(
    works: Sequence[Work],
    options: Mapping[str, Any],
    *,
    jobs: int,
    timeout_s: float,
    memory_gib: float,
    cluster: str | ClusterWorkers | None = None,
    recorded: Collection[Outcome] = (),
) -> Iterator[Outcome]:
    """Run works and yield outcomes as they come, one for each subject, invariant and seed.

    Args:
        works: the works.
        options: further arguments of :func:`attnbench.checking.tasks.outcomes`.
        jobs: number of processes; 0 for one per core.
        timeout_s: most seconds for an invariant.
        memory_gib: most memory of a subject's process, in GiB.
        cluster: cluster to run on instead of this machine, see :class:`ClusterWorkers`; an open one
            stays open.
        recorded: outcomes of an earlier run, which are neither run nor yielded again.
    """
    left: dict[str, Work] = {}
    works = without(works, recorded)
    if not works:
        return
    with _workers(cluster, jobs) as workers:
        if isinstance(workers, ClusterWorkers):  # small pieces, so that losing one costs little
            works = dealt(works, _PIECES * workers.count)
        else:
            works = dealt(works, jobs)

        def submit(number: str, work: Work) -> None:
            left[number] = work
            arguments = {
                "target": work.target,
                "subject": work.subject,
                "invariants": work.invariants,
                "seed": work.seed,
                **options,
            }
            function = "attnbench.checking.tasks:outcomes"
            workers.submit(
                Task(number, function, arguments, timeout_s=timeout_s, memory_gib=memory_gib)
            )

        for number, work in enumerate(works):
            submit(str(number), work)
        seen = {key_of(outcome) for outcome in recorded}
        for event in workers.events():
            seed = left[event.task.name].seed
            for found in _outcomes(event, left, submit):
                outcome = replace(found, seed=seed)
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
    bad = [outcome for outcome in group if outcome.status not in ("passed", "skipped")]
    passed = [outcome for outcome in group if outcome.status == "passed"]
    one = (bad or passed or group)[0]
    on = f"{one.reason}\n  on {len(bad)} of {len(group)} seeds" if bad else one.reason
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
        if work.late:  # a new process has to run a broken contract again to know it
            again = (CONTRACT, *work.late) if work.broken else work.late
            submit(number, replace(work, invariants=again, late=()))
        return
    status = "error" if event.kind == "raised" else event.kind
    current, rest = work.invariants[0], work.invariants[1:]
    seconds = event.task.timeout_s if status == "timeout" else 0.0
    ended = Outcome(work.label, current, status, event.reason, seconds=seconds)
    yield _repeatable(ended, event.task)
    if event.kind == "raised" or not work.restarts:
        reason = f"not run: {_RESTARTS + 1} processes of the subject ended, the last in {current}"
        if event.kind == "raised":
            reason = f"not run, for the reason given at {current}"
        for name in (*rest, *work.late):
            yield Outcome(work.label, name, status, reason)
    elif rest:
        submit(number, replace(work, invariants=rest, restarts=work.restarts - 1))
    elif work.late:
        left_over = replace(work, invariants=work.late, late=(), restarts=work.restarts - 1)
        submit(number, left_over)


def _repeatable(outcome: Outcome, task: Task) -> Outcome:
    """Add the command that reproduces an outcome, if it has no script."""
    if outcome.status in ("passed", "skipped") or outcome.reproduce:
        return outcome
    given = task.arguments
    words = ["attnbench", "check", given["target"], "--invariant", outcome.invariant]
    words += ["--profile", given["profile"]]
    words += ["--seed", str(given["seed"])] if given["seed"] is not None else []
    words += ["--device", given["device"]] if given["device"] != "cpu" else []
    words += [word for name in given["dtypes"] or () for word in ("--dtype", name)]
    return replace(outcome, reproduce=shlex.join(words))
