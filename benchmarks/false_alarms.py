"""How often unchanged code is called faster or slower, and a slowdown of 10 % slower.

    python benchmarks/false_alarms.py [PAIRS] [SUBJECT...]

Calibrates this machine in a folder of its own; then measures pairs of runs of the same code, their
processes in turn, and compares them: each verdict of faster or slower is a false alarm. Then the
times of every second run are made 10 % longer: each verdict other than slower is a miss, unless the
comparison had said that it could not have seen so small an effect.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

SUBJECTS = """
    additive average bilinear bilinear/fused concat_linear concat_linear/one_row concat_tanh_sum dot
    dot/fused gaussian gaussian/differences key_value scaled_dot scaled_dot/fused self_additive
    self_additive/one_row self_tanh self_tanh/one_row vector_sum vector_sum/one_row
""".split()  # noqa: SIM905 -- a line each would be twenty
PROCESSES = 5
SLOWDOWN = 1.10


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


def verdicts(folder: Path, *runs: str) -> list[dict[str, Any]]:
    """The rows of a comparison."""
    found = json.loads(attnbench("compare", *runs, "--results", str(folder), "--json"))
    return list(found["rows"])


def slowed(folder: Path, run: str) -> str:
    """The name of a copy of a run, every time in it 10 % longer."""
    from attnbench.benchmark import store

    name = f"{run}-slowed"
    for record in store.read(folder / f"{run}.jsonl"):
        time_s = None if record.time_s is None else record.time_s * SLOWDOWN
        store.append(store.run_path(folder, name), replace(record, run=name, time_s=time_s))
    return name


def main(pairs: int, subjects: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common = [*subjects, "--set", "smoke", "--results", name]
        attnbench("calibrate", *common, "--runs", "4", "--processes", str(PROCESSES))
        unchanged: Counter[str] = Counter()
        slower: Counter[str] = Counter()
        for pair in range(pairs):
            runs = [f"{pair}-a", f"{pair}-b"]
            for process in range(PROCESSES):
                for run in runs if process % 2 else runs[::-1]:
                    more = ["--resume"] if process else []
                    attnbench(
                        "bench", *common, "--run", run, "--processes", str(process + 1), *more
                    )
            unchanged.update(row["verdict"] for row in verdicts(folder, *runs))
            for row in verdicts(folder, runs[0], slowed(folder, runs[1])):
                seen = row["would_see"] is not None and row["would_see"] <= SLOWDOWN - 1
                kind = "at least 1 ms" if (row["a_time_s"] or 0) >= 1e-3 else "below 1 ms"
                slower[f"{kind}, {'promised' if seen else 'not promised'}: {row['verdict']}"] += 1
            print(f"after {pair + 1} pairs", flush=True)
            print(f"  unchanged: {dict(sorted(unchanged.items()))}", flush=True)
            print(f"  slowed by {SLOWDOWN - 1:.0%}: {dict(sorted(slower.items()))}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:] or SUBJECTS)
