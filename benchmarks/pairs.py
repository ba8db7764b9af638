"""What pairs are worth on this machine: spread, false alarms, and slowdowns by real work.

    python benchmarks/pairs.py record aa.jsonl --pairs 240 [--load half] [--change 5]
    python benchmarks/pairs.py spread aa.jsonl...
    python benchmarks/pairs.py tables aa.jsonl --tables 200 --rows 8
    python benchmarks/pairs.py trials five.jsonl --trials 60 --pairs 30 [--margin 1]

``record`` takes pairs of a call of about a millisecond and appends them, with all slots, to a file:
of the same code on both sides, or of ``--change`` percent more work on side B. Loads other than
``none`` are made with stress-ng: ``half`` is one core at half load, ``memory`` streams through
memory, ``bursts`` is half a second of work in a second. ``tables`` puts tables of unchanged rows
together from recorded pairs, each pair once in a table, and counts those in which any row is
called; ``trials`` draws trials, with replacement, from recorded pairs of a change and counts those
that miss it.
``--margin`` is that of ``attnbench compare``: a change within it is called slightly slower, however
surely it is seen.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

SUBJECTS = Path(__file__).with_name("pair_subjects.py")
SIDES = {0: ("SAME", "SAME"), 3: ("BASE_3", "MORE_3"), 5: ("SAME", "MORE_5")}
LOADS = {
    "none": None,
    "half": ["--cpu", "1", "--cpu-load", "50"],
    "memory": ["--stream", "1"],
    "bursts": ["--cpu", "1", "--cpu-load", "50", "--cpu-load-slice", "500"],
}


@contextlib.contextmanager
def stressed(load: str) -> Iterator[None]:
    """Other work on the machine."""
    options = LOADS[load]
    if options is None:
        yield
        return
    program = shutil.which("stress-ng")
    if program is None:
        raise SystemExit(f"--load {load} needs stress-ng: apt install stress-ng")
    process = subprocess.Popen(  # noqa: S603 -- a program that was asked for
        [program, "--quiet", *options]
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def record(path: Path, pairs: int, load: str, change: int) -> None:
    """Append pairs to a file."""
    from attnbench_plugins.comparing.command import Request, duel_of
    from attnbench_plugins.comparing.exchange import Unmeasured

    from attnbench.benchmark.bench_case import BenchCase
    from attnbench.benchmark.machine import Load
    from attnbench.cases.case import Case

    case = BenchCase(Case((1, 1), 128, 128, 64, 64, 64))
    addresses = tuple(f"{SUBJECTS}:{name}" for name in SIDES[change])
    with (
        stressed(load),
        duel_of(Request(subjects=addresses), [case]) as duel,
        path.open("a", encoding="utf-8") as file,
    ):
        rows = [(row.case, row.addresses) for row in duel.rows]
        for _ in range(pairs):
            busy, started = Load(), time.perf_counter()
            for _, found in duel.exchange.pair(rows):
                if isinstance(found, Unmeasured):
                    raise SystemExit(str(found))
                content = {
                    "load": load,
                    "change": change,
                    "seconds": round(time.perf_counter() - started, 3),
                    "others_cores": round(busy.read()["others_cores"], 2),
                    "blocks": [
                        [b.order, *(float(f"{s.seconds:.5g}") for s in b.slots), b.disturbed]
                        for b in found
                    ],
                }
                file.write(json.dumps(content) + "\n")
                file.flush()


def read(path: Path) -> list[dict[str, object]]:
    """The pairs of a file, with their values."""
    from attnbench.benchmark.timing.blocks import Block, Slot, pair_value

    found = []
    for line in path.read_text("utf-8").splitlines():
        content = json.loads(line)
        blocks = [
            Block(order, tuple(Slot(s, n < disturbed) for n, s in enumerate(seconds)))
            for order, *seconds, disturbed in content["blocks"]
        ]
        slots = [slot.seconds for block in blocks for slot in block.slots]
        scatter = statistics.stdev(map(math.log, slots))
        found.append({**content, "value": pair_value(blocks), "scatter": scatter})
    return found


def spread(paths: list[Path]) -> None:
    """Print how much pairs scatter, and single slots."""
    print("load     change  pairs  mean_%  spread_%  slots_%  others_cores  s_a_pair")
    for path in paths:
        pairs = read(path)
        for load in dict.fromkeys(str(pair["load"]) for pair in pairs):
            own = [pair for pair in pairs if pair["load"] == load]
            values = [float(pair["value"]) for pair in own]
            mean, sd = statistics.fmean(values), statistics.stdev(values)
            scatter = statistics.median(float(pair["scatter"]) for pair in own)
            others = statistics.fmean(float(pair["others_cores"]) for pair in own)
            seconds = statistics.fmean(float(pair["seconds"]) for pair in own)
            print(
                f"{load:8} {own[0]['change']:6}  {len(own):5}  {100 * math.expm1(mean):6.2f}  "
                f"{100 * math.expm1(sd):8.2f}  {100 * math.expm1(scatter):7.1f}  {others:12.2f}  "
                f"{seconds:8.2f}"
            )


def called(values: list[list[float]], margin: float = 0.03) -> list[str]:
    """The verdicts of a table of rows, through all its looks."""
    import numpy as np
    from attnbench_plugins.comparing.verdict import LOOKS, judge_pairs

    verdicts = ["ambiguous"] * len(values)
    for look, alpha in LOOKS.items():
        undecided = [n for n, verdict in enumerate(verdicts) if verdict == "ambiguous"]
        if not undecided or look > len(values[0]):
            break
        columns = np.array([values[n][:look] for n in undecided]).T
        for n, found in zip(
            undecided, judge_pairs(columns, alpha=alpha, margin=margin), strict=True
        ):
            verdicts[n] = found.verdict
    return verdicts


def bound(some: int, of: int) -> str:
    """A share and its upper bound, which holds in 95 of 100."""
    from scipy import stats

    high = stats.beta.ppf(0.95, some + 1, of - some) if some < of else 1.0
    return f"{some} of {of} (at most {high:.1%})"


def tables(path: Path, count: int, rows: int) -> None:
    """Print in how many tables of unchanged rows any is called."""
    values = [float(pair["value"]) for pair in read(path)]
    pairs = len(values) // rows
    if pairs < 15:
        raise SystemExit(f"{rows} rows need {15 * rows} recorded pairs, not {len(values)}")
    chance, wrong = random.Random(0), 0  # noqa: S311 -- no secret
    for _ in range(count):
        drawn = chance.sample(values, rows * pairs)
        found = called([drawn[n * pairs : (n + 1) * pairs] for n in range(rows)])
        wrong += any(verdict in ("faster", "slower") for verdict in found)
    print(
        f"{path}: of tables of {rows} rows and {pairs} pairs, any row was called in "
        f"{bound(wrong, count)}"
    )


def trials(path: Path, count: int, pairs: int, margin: float) -> None:
    """Print how often a change is missed."""
    recorded = read(path)
    values = [float(pair["value"]) for pair in recorded]
    if len(values) < pairs:
        raise SystemExit(f"a trial of {pairs} pairs needs as many recorded ones, not {len(values)}")
    # with replacement: trials of most of the recorded pairs would all be the same trial
    chance, missed = random.Random(0), 0  # noqa: S311 -- no secret
    for _ in range(count):
        (verdict,) = called([chance.choices(values, k=pairs)], margin / 100)
        missed += verdict != "slower"
    mean = math.expm1(statistics.fmean(values))
    print(
        f"{path}: a change of {mean:.1%} (by all {len(values)} pairs), missed in trials of {pairs} "
        f"pairs with a margin of {margin:g} %: {bound(missed, count)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    taking = commands.add_parser("record")
    taking.add_argument("file", type=Path)
    taking.add_argument("--pairs", type=int, default=60)
    taking.add_argument("--load", choices=LOADS, default="none")
    taking.add_argument("--change", type=int, choices=SIDES, default=0)
    telling = commands.add_parser("spread")
    telling.add_argument("files", type=Path, nargs="+")
    counting = commands.add_parser("tables")
    counting.add_argument("file", type=Path)
    counting.add_argument("--tables", type=int, default=200)
    counting.add_argument("--rows", type=int, default=8)
    trying = commands.add_parser("trials")
    trying.add_argument("file", type=Path)
    trying.add_argument("--trials", type=int, default=60)
    trying.add_argument("--pairs", type=int, default=30)
    trying.add_argument("--margin", type=float, default=3.0, help="percent, 3 unless said")
    given = parser.parse_args()
    if given.command == "record":
        record(given.file, given.pairs, given.load, given.change)
    elif given.command == "spread":
        spread(given.files)
    elif given.command == "tables":
        tables(given.file, given.tables, given.rows)
    else:
        trials(given.file, given.trials, given.pairs, given.margin)


if __name__ == "__main__":
    main()
