"""Running invariants on mutants and right implementations, many at once, as plain results."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attnbench_zoo.base import Spec

from attnbench.checking.plan import select_invariants
from attnbench.checking.profiles import PROFILES
from attnbench.checking.runner import run_invariant, seeded
from attnbench.processes.cluster import ClusterWorkers
from attnbench.processes.pool import Event, Task, Workers
from attnbench.subject.lookup import installed, resolve

__all__ = ["Job", "Result", "results", "run_all", "run_job"]

_JOB_S = 3600.0
"""Longest time of a job: every invariant on one subject, in the thorough profile."""
_TOGETHER = {"quick": 20, "default": 4, "thorough": 1}
"""Jobs in one process by profile: the first use of each part of torch takes longer than a short
job, and a cluster returns the results of a process when it ends."""


@dataclass(frozen=True)
class Job:
    """Some invariants on one subject.

    Args:
        subject: index in the list that ``source`` names.
        source: ``"mutants"``, ``"twins"``, ``"right"``, ``"by design"`` or ``"builtin"``.
        invariants: names.
        profile, seed: as in :func:`attnbench.check`.
        until_killed: stop at the first invariant that fails.
    """

    subject: int
    source: str
    invariants: tuple[str, ...]
    profile: str = "default"
    seed: int | None = None
    until_killed: bool = False


@dataclass(frozen=True)
class Result:
    """What one invariant said."""

    source: str
    subject: str
    invariant: str
    profile: str
    seed: int | None
    status: str
    seconds: float
    reason: str
    counterexample: str | None
    raised: str | None = None


def listed(source: str) -> list[tuple[str, Spec | str]]:
    """Names and specs (or addresses) of a source, in a fixed order."""
    from attnbench_zoo.mutants import MUTANTS, TWINS
    from attnbench_zoo.right import RIGHT
    from attnbench_zoo.right.by_design import BY_DESIGN
    from attnbench_zoo.right.layers import RIGHT_LAYERS

    if source == "mutants":
        return [(mutant.name, mutant.spec) for mutant in MUTANTS]
    if source == "twins":
        return [(twin.name, twin.spec) for twin in TWINS]
    if source == "builtin":
        return [(subject.name, subject.name) for subject in installed()]
    if source == "by design":
        return [(spec.name, spec) for spec in BY_DESIGN]
    return [*((right.name, right.spec) for right in RIGHT), *RIGHT_LAYERS.items()]


def run_job(job: Job) -> list[Result]:
    """The results of one job, in this process."""
    name, target = listed(job.source)[job.subject]
    (subject,) = resolve(target)
    found = []
    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for invariant in select_invariants(job.invariants):
            outcome = run_invariant(
                subject, invariant, PROFILES[job.profile], seed=job.seed, shrink=False
            )
            found.append(
                Result(
                    job.source,
                    name,
                    invariant.name,
                    job.profile,
                    job.seed,
                    outcome.status,
                    round(outcome.seconds, 3),
                    outcome.reason if outcome.status != "passed" else "",
                    outcome.counterexample,
                    outcome.failure.raised if outcome.failure else None,
                )
            )
            if job.until_killed and outcome.status == "failed":
                break
    return found


def results(jobs: Sequence[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """The results of each job as plain data, for a child process."""
    for job in jobs:
        yield [asdict(result) for result in run_job(Job(**job))]


def run_all(
    jobs: Sequence[Job], processes: int = 2, cluster: str | None = None
) -> Iterator[list[Result]]:
    """The results of many jobs as they come, some jobs in a child process, here or on a cluster.

    A job whose process ends otherwise has that for the result of each of its invariants; those that
    were to follow it in the same process get another one.
    """
    with Workers(processes) if cluster is None else ClusterWorkers(cluster) as workers:
        left: dict[str, list[Job]] = {}

        def submit(some: list[Job]) -> None:
            name = str(len(left))
            left[name] = some
            given = {"jobs": [asdict(job) for job in some]}
            function = "tests.meta.mutants.measure:results"
            workers.submit(Task(name, function, given, _JOB_S, memory_gib=4.0))

        together = _TOGETHER[jobs[0].profile] if jobs else 1
        for start in range(0, len(jobs), together):
            submit(list(jobs[start : start + together]))
        for event in workers.events():
            rest = left[event.task.name]
            if event.kind == "value":
                del rest[0]
                yield [Result(**row) for row in event.value]
            elif event.kind != "done":
                job = rest.pop(0)
                yield [_ended(job, name, event) for name in job.invariants]
                if rest:
                    submit(rest)


def _ended(job: Job, invariant: str, event: Event) -> Result:
    name, _ = listed(job.source)[job.subject]
    status = "error" if event.kind == "raised" else event.kind
    return Result(
        job.source, name, invariant, job.profile, job.seed, status, 0.0, event.reason, None
    )
