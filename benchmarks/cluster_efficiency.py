"""Simulate a check on a cluster; tell what share of the workers' time goes to checking.

    python benchmarks/cluster_efficiency.py [JOURNAL] [--hours H] [--scheduling-ms 5]

The lengths of the tasks are those in the journal of ``attnbench check --profile thorough
--resume JOURNAL``. A subject that is not in it takes, at each invariant, as long as one drawn from
those that are in it and were not skipped there. The tasks are those that attnbench submits, in its
order, and a worker that is free takes the first that waits, as Dask's do. The scheduler is one
process that is busy for ``--scheduling-ms`` with each task, and a worker starts a process for each,
which takes ``--starting-s``. With ``--hours`` the lengths are scaled so that all together take so
many: those of a busy machine are too long.

Efficiency is the seconds of all outcomes over workers times the time until the last has ended.
"""

from __future__ import annotations

import argparse
import collections
import heapq
import itertools
import json
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from attnbench.checking.outcomes import KEEPS_CONTRACT
from attnbench.checking.work import Work, shared_out, works_of

JOURNAL = Path(__file__).parents[1] / "results" / "thorough_lengths.jsonl"
SEEDS = 20
Lengths = dict[tuple[str, int | None, str], float]


def recorded(path: Path) -> tuple[list[str], dict[str, dict[str, float]]]:
    """The subjects that the profile checks, and the seconds of the measured ones by invariant."""
    _, *lines = path.read_text().splitlines()
    found: dict[str, dict[str, float]] = collections.defaultdict(dict)
    for row in map(json.loads, lines):
        found[row["subject"]][row["invariant"]] = row["seconds"]
    from attnbench.checking.plan import all_targets

    return all_targets("thorough"), {s: rows for s, rows in found.items() if KEEPS_CONTRACT in rows}


def planned(subjects: Sequence[str]) -> dict[str, list[str]]:
    """The invariants that say something of each subject."""
    from attnbench.checking.plan import plan

    asked = {"profile": "thorough", "device": "cpu", "dtypes": None, "invariants": None}
    return plan(subjects, **asked)["of_subject"]  # type: ignore[no-any-return]


def lengths_of(of_subject: dict[str, list[str]], measured: dict[str, dict[str, float]]) -> Lengths:
    """Seconds of each outcome of all seeds."""
    chance = random.Random(0)  # noqa: S311 -- no secrets
    ran = collections.defaultdict(list)
    for rows in measured.values():
        for name, seconds in rows.items():
            ran[name].append(seconds)
    every = [seconds for rows in measured.values() for seconds in rows.values()]
    found: Lengths = {}
    for subject, names in of_subject.items():
        for name in names:
            one = measured.get(subject, {}).get(name)
            one = chance.choice(ran[name] or every) if one is None else one
            # the same invariant draws other cases on another seed
            found |= {(subject, seed, name): one for seed in range(SEEDS)}
    return found


def simulate(
    works: Sequence[Work],
    lengths: Lengths,
    workers: int,
    scheduling_s: float,
    starting_s: float,
) -> tuple[float, int]:
    """Seconds until the last task has ended, and the number of tasks."""
    waiting = collections.deque(works)
    free, ended, order = workers, list[tuple[float, int]](), itertools.count()
    now = scheduler = 0.0
    while waiting or ended:
        while waiting and free:
            work = waiting.popleft()
            free -= 1
            scheduler = max(scheduler, now) + scheduling_s
            took = sum(lengths[work.label, work.seed, name] for name in work.invariants)
            heapq.heappush(ended, (scheduler + starting_s + took, next(order)))
        now, _ = heapq.heappop(ended)
        free += 1
    return now, next(order)


def ways() -> Iterator[tuple[str, Callable[[Sequence[Work], int], list[Work]]]]:
    """How works can be split for a number of workers."""
    yield "a subject a task", lambda works, workers: list(works)
    yield "4 tasks a worker", lambda works, workers: shared_out(works, 4 * workers)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("journal", type=Path, nargs="?", default=JOURNAL)
    parser.add_argument("--scheduling-ms", type=float, default=5.0)
    parser.add_argument("--starting-s", type=float, default=0.2)
    parser.add_argument("--hours", type=float)
    options = parser.parse_args()
    subjects, measured = recorded(options.journal)
    of_subject = planned(subjects)
    lengths = lengths_of(of_subject, measured)
    if options.hours is not None:
        scale = options.hours * 3600 / sum(lengths.values())
        lengths = {key: seconds * scale for key, seconds in lengths.items()}
    names = list(dict.fromkeys(name for named in of_subject.values() for name in named))
    pairs = [(subject, subject) for subject in of_subject]
    works = works_of(pairs, names, of_subject)
    works = [replace(work, seed=seed) for seed in range(SEEDS) for work in works]
    total, median = sum(lengths.values()), statistics.median(lengths.values())
    print(
        f"{len(of_subject)} subjects, {len(measured)} of them measured, {SEEDS} seeds: "
        f"{len(lengths):,} outcomes of {total / 3600:.1f} h; the longest takes "
        f"{max(lengths.values()):.0f} s, the median one {median:.1f} s"
    )
    costs = (options.scheduling_ms / 1000, options.starting_s)
    for how, split in ways():
        for workers in (64, 1000):
            works_there = split(works, workers)
            seconds, tasks = simulate(works_there, lengths, workers, *costs)
            free, _ = simulate(works_there, lengths, workers, 0.0, 0.0)
            print(
                f"{how}, {workers:,} workers: {tasks:,} tasks in {seconds:,.0f} s, efficiency "
                f"{total / workers / seconds:.1%}, or {total / workers / free:.1%} if tasks "
                "cost nothing"
            )


if __name__ == "__main__":
    main()
