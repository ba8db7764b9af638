"""Who kills whom: ``python -m tests.meta.mutants.matrix``.

Three measurements, each resumable (what is in ``--work`` is not run again):

``matrix``   every invariant on every mutant; writes ``results/kill_matrix.json``.
``killed``   on several seeds, whether each mutant is killed by anything at all.
``right``    on several seeds, whether any right implementation is accused. With ``--accounts``,
             what is done is kept in a short file that can be committed, and another machine goes
             on with the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from attnbench_zoo.mutants import MUTANTS

from attnbench.checking.plan import select_invariants
from attnbench.errors import AttnbenchError
from attnbench.subject.lookup import resolve
from tests.meta.mutants import accounts
from tests.meta.mutants.measure import Job, Result, listed, run_all

__all__ = ["main"]

ROOT = Path(__file__).parents[3]
Kills = dict[str, list[str]]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.meta.mutants.matrix", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("what", choices=("matrix", "killed", "right"), nargs="?", default="matrix")
    parser.add_argument("--profile", choices=("quick", "default", "thorough"), default="default")
    parser.add_argument("--seeds", type=int, default=0, help="0: derandomised, once")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cluster", help="run there instead; as of attnbench check")
    parser.add_argument("--only", default="", help="subjects whose name contains this")
    parser.add_argument("--kind", default="", help="subjects of this kind; default all")
    parser.add_argument("--invariants", default="", help="names, separated by commas; default all")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after this long")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "kill_matrix.jsonl")
    parser.add_argument("--accounts", type=Path, help="of right: what is done, a line a subject")
    options = parser.parse_args()
    chosen = options.invariants.split(",") if options.invariants else None
    names = tuple(invariant.name for invariant in select_invariants(chosen))
    seeds: list[int | None] = [*range(options.seeds)] or [None]
    known = _read(options.work)
    jobs = list(
        _jobs(options.what, options.only, options.kind, names, options.profile, seeds, known)
    )
    if options.accounts:
        kept = accounts.read_accounts(options.accounts)
        jobs = [job for job in jobs if not accounts.is_done(kept, job)]
    _run(jobs, options.work, options.processes, options.cluster, options.minutes)
    results = [r for r in _read(options.work) if r.profile == options.profile and r.seed in seeds]
    if options.what == "matrix":
        _write_matrix(results, names, options.profile)
    elif options.what == "killed":
        _tell_killed(results, seeds)
    else:
        _tell_accused(results)
    if options.accounts:
        found = accounts.accounts_of(results, names, accounts.head(ROOT))
        accounts.add_accounts(options.accounts, found)
        print(accounts.summary(accounts.read_accounts(options.accounts).values()))


def _read(path: Path) -> list[Result]:
    if not path.exists():
        return []
    return [Result(**json.loads(line)) for line in path.read_text().splitlines()]


def _jobs(
    what: str,
    only: str,
    kind: str,
    names: tuple[str, ...],
    profile: str,
    seeds: Iterable[int | None],
    known: list[Result],
) -> Iterator[Job]:
    done: dict[tuple[str, str, int | None], set[str]] = defaultdict(set)
    killed: set[tuple[str, int | None]] = set()
    for r in known:
        if r.profile == profile:
            done[r.source, r.subject, r.seed].add(r.invariant)
            if r.source == "mutants" and r.status == "failed":
                killed.add((r.subject, r.seed))
    killers = {mutant.name: mutant.killers for mutant in MUTANTS}
    sources = ("mutants",) if what != "right" else ("twins", "right", "by design", "builtin")
    for seed in seeds:
        for source in sources:
            for index, (name, target) in enumerate(listed(source)):
                if kind not in ("", resolve(target)[0].kind):
                    continue
                if only not in name or (what == "killed" and (name, seed) in killed):
                    continue
                rest = [n for n in names if n not in done[source, name, seed]]
                if what == "killed":  # those that are meant to kill it come first
                    first = killers[name]
                    rest = [n for n in first if n in rest] + [n for n in rest if n not in first]
                if rest:
                    yield Job(index, source, tuple(rest), profile, seed, what == "killed")


def _run(jobs: list[Job], work: Path, processes: int, cluster: str | None, minutes: float) -> None:
    work.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * minutes if minutes else float("inf")
    with work.open("a") as file:
        for number, results in enumerate(run_all(jobs, processes, cluster), 1):
            for result in results:
                file.write(json.dumps(asdict(result)) + "\n")
            file.flush()
            print(f"\r{number} of {len(jobs)}", end="", flush=True)
            if time.monotonic() > until:
                print("\nstopped: run again to go on")
                break
    print()


def _write_matrix(results: list[Result], names: tuple[str, ...], profile: str) -> None:
    measured = {r.subject for r in results if r.source == "mutants"}
    kills: Kills = {mutant.name: [] for mutant in MUTANTS if mutant.name in measured}
    for r in results:
        if r.source == "mutants" and r.status == "failed" and r.invariant in names:
            kills[r.subject].append(r.invariant)
    kills = {name: sorted(killers) for name, killers in kills.items()}
    mutants = {
        m.name: {
            "as_in": m.bugs,
            "twin": m.twin.name,
            "mistake": m.mistake,
            "meant": [name for name in kills[m.name] if name in m.killers],
        }
        for m in MUTANTS
        if m.name in kills
    }
    found = {"profile": profile, "kills": kills, "mutants": mutants}
    text = json.dumps(found, indent=1, ensure_ascii=False)
    (ROOT / "results" / "kill_matrix.json").write_text(text + "\n")
    print(_summary(kills, names))


def _redundant(kills: Kills, names: Iterable[str]) -> list[str]:
    """Invariants whose mutants are all killed by the others."""
    sole = {killers[0] for killers in kills.values() if len(killers) == 1}
    return [name for name in names if name not in sole]


def _summary(kills: Kills, names: tuple[str, ...]) -> str:
    count = Counter(name for killers in kills.values() for name in killers)
    survivors = [name for name, killers in kills.items() if not killers]
    sole = Counter(killers[0] for killers in kills.values() if len(killers) == 1)
    unmet = [
        f"{m.name} by {', '.join(sorted(set(m.killers) - set(kills[m.name])))}"
        for m in MUTANTS
        if m.name in kills and set(m.killers) - set(kills[m.name])
    ]
    obvious = {"weights_sum_to_one", "masked_weights_are_zero", "unit_variance"}
    by_obvious = sum(bool(obvious & set(killers)) for killers in kills.values())
    return "\n".join(
        [
            f"- {len(kills)} of {len(MUTANTS)} mutants measured, "
            f"{len(kills) - len(survivors)} killed by {len(names)} invariants; "
            f"row sums, masked zeros and variance alone kill {by_obvious}.",
            f"- Survivors: {', '.join(survivors) or 'none'}.",
            f"- Not killed by what is meant to kill them: {'; '.join(unmet) or 'none'}.",
            f"- Invariants that alone kill some mutant: "
            f"{', '.join(f'{name} ({n})' for name, n in sole.most_common())}.",
            f"- Redundant here (each of their mutants is killed by another too): "
            f"{', '.join(name for name in _redundant(kills, names) if count[name])}.",
            f"- Kill nothing here: {', '.join(n for n in names if not count[n]) or 'none'}.",
        ]
    )


def _tell_killed(results: list[Result], seeds: list[int | None]) -> None:
    killed = {
        (r.subject, r.seed) for r in results if r.source == "mutants" and r.status == "failed"
    }
    measured = {r.subject for r in results if r.source == "mutants"}
    for seed in seeds:
        alive = [name for name in sorted(measured) if (name, seed) not in killed]
        share = 1 - len(alive) / max(1, len(measured))
        print(f"seed {seed}: {share:.1%} killed{'; alive: ' if alive else ''}{', '.join(alive)}")


def _tell_accused(results: list[Result]) -> None:
    right = [r for r in results if r.source != "mutants"]
    bad = [r for r in right if r.status not in ("passed", "skipped")]
    seeds = len({r.seed for r in right})
    print(f"{len(right)} outcomes on {seeds} seeds, {len(bad)} neither passed nor skipped")
    for r in bad:
        print(f"{r.subject} {r.invariant} seed {r.seed}: {r.status} {r.reason}")


if __name__ == "__main__":
    try:
        main()
    except AttnbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
