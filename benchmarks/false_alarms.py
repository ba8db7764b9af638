"""How often unchanged code is called faster or slower, and a slowdown of 10 % slower.

    python benchmarks/false_alarms.py [--pairs N] [--processes N] [--swaps N] [SUBJECT...]

Calibrates this machine in a folder of its own; then measures the same code on two sides, a run of
one process of each in turn, and compares them: each verdict of faster or slower is a false alarm.
Then the times of the second side are made 10 % longer: each verdict other than slower is a miss,
unless the comparison had said that it could not have seen so small an effect. At last they are made
longer by just as much as the comparison had said of each row that it would see, which puts its word
to the test on a noisy machine too; such a machine promises 10 % with many processes only.

Which of two runs taken in turn is on which side is chance: with ``--swaps`` each pair is compared
that many times more, such runs swapped at random. These rows share their processes, so the shares
printed are better known than from one comparison, but less well than their bounds say.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

SUBJECTS = """
    additive average bilinear bilinear/fused concat_linear concat_linear/one_row concat_tanh_sum dot
    dot/fused gaussian gaussian/differences key_value scaled_dot scaled_dot/fused self_additive
    self_additive/one_row self_tanh self_tanh/one_row vector_sum vector_sum/one_row
""".split()  # noqa: SIM905 -- a line each would be twenty
SLOWDOWN = 1.10
Row = tuple[str, str, str]
"""Contract, subject and case."""


def attnbench(*arguments: str) -> str:
    """What a command prints."""
    import contextlib
    import io

    from attnbench.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(arguments)
    if code in (2, 3):
        raise SystemExit(f"attnbench {' '.join(arguments)} ended with {code}")
    return out.getvalue()


def verdicts(folder: Path, a: Path, b: Path) -> list[dict[str, Any]]:
    """The rows of a comparison."""
    found = json.loads(attnbench("compare", str(a), str(b), "--results", str(folder), "--json"))
    return list(found["rows"])


def row_of(row: Mapping[str, Any]) -> Row:
    """What names a row of a comparison."""
    return row["contract"], row["subject"], row["case"]


def length(row: Mapping[str, Any]) -> str:
    """Whether a row counts among those of a millisecond and more."""
    return "at least 1 ms" if (row["a_time_s"] or 0) >= 1e-3 else "below 1 ms"


def slowed(side: Path, name: str, factors: Mapping[Row, float]) -> Path:
    """A copy of the runs in a folder, the times of each row longer by a factor of its own."""
    from attnbench.benchmark.records import store

    copy = side.with_name(f"{side.name}-{name}")
    for record in store.read_folder(side):
        factor = factors.get((record.contract, record.subject, record.case), 1.0)
        time_s = None if record.time_s is None else record.time_s * factor
        run = f"{record.run}-{name}"
        store.append(store.run_path(copy, run), replace(record, run=run, time_s=time_s))
    return copy


def swapped(sides: tuple[Path, Path], number: int) -> tuple[Path, Path]:
    """Copies of two sides, where chance says which of two runs taken in turn is on which."""
    chance = random.Random(number)  # noqa: S311 -- no secret
    copies = tuple(side.with_name(f"{side.name}-swapped-{number}") for side in sides)
    for copy in copies:
        copy.mkdir()
    for runs in zip(*(sorted(side.glob("*.jsonl"), key=_process) for side in sides), strict=True):
        for run, copy in zip(runs, chance.sample(copies, 2), strict=True):
            shutil.copy(run, copy)
    return copies[0], copies[1]


def _process(run: Path) -> int:
    return int(run.stem.rpartition("-")[2])


def called(verdicts: Counter[str], *wanted: str) -> str:
    """How many of some verdicts are among the wanted ones, and the 95 % bounds of their share."""
    from scipy import stats

    of, some = verdicts.total(), sum(verdicts[name] for name in wanted)
    if not of:
        return "none"
    bounds = stats.binomtest(some, of).proportion_ci(0.90)  # each bound holds in 95 of 100
    return f"{some} of {of}, that is {bounds.low:.1%} to {bounds.high:.1%}"


def main(pairs: int, processes: int, swaps: int, subjects: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common = [*subjects, "--set", "smoke", "--results"]
        attnbench("calibrate", *common, name, "--runs", str(processes), "--processes", "3")
        unchanged: Counter[str] = Counter()
        slower: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for pair in range(pairs):
            sides = folder / f"{pair}-a", folder / f"{pair}-b"
            for process in range(processes):
                for side in sides if process % 2 else sides[::-1]:
                    attnbench("bench", *common, str(side), "--run", f"{side.name}-{process}")
            for a, b in (sides, *(swapped(sides, number) for number in range(swaps))):
                rows = {row_of(row): row for row in verdicts(folder, a, b)}
                unchanged.update(row["verdict"] for row in rows.values())
                promised = {row: 1 + see for row in rows if (see := rows[row]["would_see"])}
                just = slowed(b, "just-seen", promised)
                for row in verdicts(folder, a, just):
                    if row_of(row) in promised:
                        kind = f"slower by what it said it would see, {length(row)}"
                        slower[kind][row["verdict"]] += 1
                for row in verdicts(folder, a, slowed(b, "slowed", dict.fromkeys(rows, SLOWDOWN))):
                    seen = row["would_see"] is not None and row["would_see"] <= SLOWDOWN - 1
                    told = "promised" if seen else "not promised"
                    slower[f"10 % slower, {length(row)}, {told}"][row["verdict"]] += 1
            print(f"after {pair + 1} pairs of {processes} processes a side", flush=True)
            print(f"  unchanged, called: {called(unchanged, 'faster', 'slower')}", flush=True)
            for kind, found in sorted(slower.items()):
                print(f"  {kind}, called: {called(found, 'slower')}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("subjects", nargs="*", default=SUBJECTS, metavar="SUBJECT")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--swaps", type=int, default=0)
    given = parser.parse_args()
    main(given.pairs, given.processes, given.swaps, given.subjects)
