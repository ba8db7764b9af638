"""Running invariants on mutants and right implementations, many at once, as plain results."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from attnbench.checking.api import select_invariants
from attnbench.checking.runner import PROFILES, run_invariant, seeded
from attnbench.subject.lookup import installed, resolve
from tests.meta.mutants.base import Spec

__all__ = ["Job", "Result", "run_all", "run_job"]


@dataclass(frozen=True)
class Job:
    """Some invariants on one subject.

    Args:
        subject: index in the list that ``source`` names.
        source: ``"mutants"``, ``"twins"``, ``"right"`` or ``"builtin"``.
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


def listed(source: str) -> list[tuple[str, Spec | str]]:
    """Names and specs (or addresses) of a source, in a fixed order."""
    from tests.meta.mutants import MUTANTS, TWINS
    from tests.meta.right import RIGHT

    if source == "mutants":
        return [(mutant.name, mutant.spec) for mutant in MUTANTS]
    if source == "twins":
        return [(twin.name, twin.spec) for twin in TWINS]
    if source == "builtin":
        return [(subject.name, subject.name) for subject in installed()]
    return [(right.name, right.spec) for right in RIGHT]


def run_job(job: Job) -> list[Result]:
    """The results of one job, in this process."""
    name, target = listed(job.source)[job.subject]
    (subject,) = resolve(target)
    results = []
    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for invariant in select_invariants(job.invariants):
            outcome = run_invariant(
                subject, invariant, PROFILES[job.profile], seed=job.seed, shrink=False
            )
            results.append(
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
                )
            )
            if job.until_killed and outcome.status == "failed":
                break
    return results


def run_all(jobs: Iterable[Job], processes: int = 2) -> Iterator[list[Result]]:
    """The results of many jobs as they come, each job in one of some processes."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the children when they import torch
    if processes == 1:
        yield from map(run_job, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(processes) as pool:
        yield from pool.imap_unordered(run_job, jobs)
