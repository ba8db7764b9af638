"""Who kills whom, and who is accused: ``python -m tests.meta.measure``.

``killed``   whether each mutant is killed by anything at all.
``right``    whether any right implementation is accused.

What is in ``--work`` is not run again, so that a measurement can be gone on with.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from attnbench_zoo import entries

from attnbench.checking.plan import select_invariants
from attnbench.errors import AttnbenchError
from tests.invariant_runs import run

__all__ = ["main"]

ROOT = Path(__file__).parents[2]
ENTRIES = entries()
Row = dict[str, Any]
"""What one invariant said: entry, right, invariant, profile, seed, status, seconds, reason."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.meta.measure", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", choices=("killed", "right"))
    parser.add_argument("--profile", choices=("quick", "default", "thorough"), default="quick")
    parser.add_argument("--seeds", type=int, default=0, help="0: derandomised, once")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only", default="", help="subjects whose name contains this")
    parser.add_argument("--invariants", default="", help="names, separated by commas; default all")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "measured.jsonl")
    options = parser.parse_args(arguments)
    chosen = options.invariants.split(",") if options.invariants else None
    names = [invariant.name for invariant in select_invariants(chosen)]
    seeds: list[int | None] = [*range(options.seeds)] or [None]
    rows = [row for row in _read(options.work) if row["profile"] == options.profile]
    jobs = [*_jobs(options.what, options.only, names, options.profile, seeds, rows)]
    options.work.parent.mkdir(parents=True, exist_ok=True)
    with options.work.open("a", encoding="utf-8") as file:
        for number, found in enumerate(_run(jobs, options.processes), 1):
            file.writelines(json.dumps(row) + "\n" for row in found)
            file.flush()
            rows += found
            print(f"\r{number} of {len(jobs)}", end="", flush=True)
    print()
    rows = [
        row for row in rows if row["seed"] in seeds and row["right"] == (options.what == "right")
    ]
    if options.what == "right":
        _tell_accused(rows)
    else:
        _tell_alive(rows, seeds)


def _read(path: Path) -> list[Row]:
    return [*map(json.loads, path.read_text("utf-8").splitlines())] if path.exists() else []


def _jobs(
    what: str,
    only: str,
    names: Sequence[str],
    profile: str,
    seeds: Sequence[int | None],
    known: Sequence[Row],
) -> Iterator[Row]:
    done: dict[tuple[str, bool, int | None], dict[str, str]] = defaultdict(dict)
    for row in known:
        done[row["entry"], row["right"], row["seed"]][row["invariant"]] = row["status"]
    for seed in seeds:
        for index, entry in enumerate(ENTRIES):
            told = done[entry.name, entry.right, seed]
            if entry.right != (what == "right") or only not in entry.name:
                continue
            if what == "killed" and "failed" in told.values():
                continue
            rest = [name for name in names if name not in told]
            if what == "killed":  # those that are meant to kill it come first
                rest.sort(key=lambda name: name not in entry.killers)
            if rest:
                given = {"index": index, "invariants": rest, "profile": profile, "seed": seed}
                yield {**given, "until_failed": what == "killed"}


def run_job(
    index: int, invariants: Sequence[str], profile: str, seed: int | None, until_failed: bool
) -> list[Row]:
    """What some invariants say of an entry."""
    entry, found = ENTRIES[index], []
    given = {"entry": entry.name, "right": entry.right, "profile": profile, "seed": seed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for invariant in invariants:
            outcome = run(entry.spec, invariant, profile=profile, seed=seed)
            reason = "" if outcome.status == "passed" else outcome.reason
            told = {"invariant": invariant, "status": outcome.status, "reason": reason}
            found.append({**given, **told, "seconds": round(outcome.seconds, 3)})
            if until_failed and outcome.status == "failed":
                break
    return found


def _run(jobs: Sequence[Row], processes: int) -> Iterator[list[Row]]:
    """In forks of this process, which has imported torch and the zoo once for all of them."""
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, fork, torch.set_num_threads, (1,)) as workers:
        for job in as_completed([workers.submit(run_job, **job) for job in jobs]):
            yield job.result()


def _tell_alive(rows: Sequence[Row], seeds: Sequence[int | None]) -> None:
    for seed in seeds:
        killed = {r["entry"] for r in rows if r["seed"] == seed and r["status"] == "failed"}
        alive = sorted({r["entry"] for r in rows if r["seed"] == seed} - killed)
        share = len(killed) / max(1, len(killed) + len(alive))
        print(f"seed {seed}: {share:.1%} killed; alive: {', '.join(alive) or 'none'}")


def _tell_accused(rows: Sequence[Row]) -> None:
    bad = [row for row in rows if row["status"] not in ("passed", "skipped")]
    print(f"{len(rows)} outcomes, {len(bad)} neither passed nor skipped")
    for row in bad:
        print(f"{row['entry']} {row['invariant']} seed {row['seed']}: {row['status']}")
        print(f"  {row['reason']}")


if __name__ == "__main__":
    try:
        main()
    except AttnbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
