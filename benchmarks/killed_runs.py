"""Kill ``attnbench bench`` at random moments and resume it; count what was damaged or lost.

    python benchmarks/killed_runs.py [KILLS]

A record that was seen in the file before a kill has to be there after it, every line but an
unfinished last one has to be whole, and the resumed run has to hold each case once.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BENCH = [sys.executable, "-c", "import sys; from attnbench.cli import main; sys.exit(main())"]
BENCH += ["bench", "dot", "--set", "smoke", "--run", "killed"]


def main(kills: int) -> None:
    from attnbench.benchmark.records import store

    chance = random.Random(0)  # noqa: S311 -- moments, not secrets
    lost = damaged = recorded = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "killed.jsonl"
        for _ in range(kills):
            more = ["--resume"] if path.exists() else []
            process = subprocess.Popen(  # noqa: S603 -- a command of our own
                [*BENCH, "--processes", "1000", "--results", folder, *more],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            before = len(path.read_bytes().splitlines()) if path.exists() else 0
            until = time.monotonic() + 120
            while process.poll() is None and time.monotonic() < until:
                lines = path.read_bytes().count(b"\n") if path.exists() else 0
                if lines > before:
                    break
                time.sleep(0.01)
            time.sleep(chance.uniform(0.0, 1.0))
            seen = path.read_bytes().count(b"\n") if path.exists() else 0
            process.kill()
            process.wait()
            try:
                found = list(store.read(path))
            except Exception as error:
                damaged += 1
                print(error)
                continue
            lost += max(0, seen - len(found))
            recorded = len(found)
            assert len({record.key for record in found}) == len(found), "a case was recorded twice"
    print(f"{kills} kills: {recorded} records, {damaged} damaged files, {lost} records lost")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 50)
