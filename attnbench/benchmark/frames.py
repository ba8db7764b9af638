"""What the processes of a run say together: medians, intervals and gains of each row.

Names of quantities end in their unit: ``time_s``, ``peak_bytes``.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.benchmark.machine import mean_load
from attnbench.benchmark.records import Record, read, run_files, scoring_address
from attnbench.benchmark.timing.blocks import interval

if TYPE_CHECKING:
    import pandas as pd


def summaries(lines: Iterable[Record]) -> list[Record]:
    """What the processes of each row say together, in the order of the rows' first lines.

    Times are medians over processes, ratios geometric means with Student's interval; of a single
    process the interval is that over its blocks. A row with a process that is not ok has its status
    and no ratio. A later line of a process replaces the earlier one.

    Args:
        lines: the records of single processes.
    """
    rows: dict[tuple[str, ...], dict[int, Record]] = {}
    ratios: dict[tuple[str, str, int, str], float | None] = {}
    for line in lines:
        rows.setdefault((line.run, *line.key), {})[line.process] = line
        ratios[line.run, line.case, line.process, line.subject] = line.ratio
    ordered = ([row[number] for number in sorted(row)] for row in rows.values())
    return [Record(**_together(row), gain=_gain(row, ratios)) for row in ordered]


def _together(lines: Sequence[Record]) -> dict[str, Any]:
    """The fields of a row but the gain, from the lines of its processes in order."""
    known = {
        f.name: next((v for line in lines if (v := getattr(line, f.name)) is not None), None)
        for f in fields(Record)
    }
    del known["gain"]
    times = tuple(line.time_s for line in lines if line.time_s is not None)
    ratios = tuple(line.ratio for line in lines if line.ratio is not None)
    rates = [line.tokens_per_s for line in lines if line.tokens_per_s is not None]
    samples = tuple(itertools.chain.from_iterable(line.samples_s for line in lines))
    known |= {"process": 0, "times_s": times, "ratios": ratios, "samples_s": samples}
    known |= {"load": mean_load(line.load for line in lines)}
    known["tokens_per_s"] = statistics.median(rates) if rates else None
    known["time_s"] = statistics.median(times) if times else None
    if len(ratios) > 1:
        names = ("ratio", "ratio_low", "ratio_high")
        known |= zip(names, interval([math.log(ratio) for ratio in ratios]), strict=True)
    fault = next((line for line in lines if line.status != "ok"), None)
    if fault is not None:
        known |= dict.fromkeys(("baseline", "ratio", "ratio_low", "ratio_high"))
        known |= {"status": fault.status, "reason": fault.reason, "ratios": ()}
    return known


def _gain(
    lines: Sequence[Record], ratios: Mapping[tuple[str, str, int, str], float | None]
) -> float | None:
    """How many times faster a kernel is than its scoring function; ``None`` if it is not known.

    Only processes that measured both count: what is common to both in a process cancels.
    """
    if lines[0].kind != "kernel" or any(line.status != "ok" for line in lines):
        return None
    scoring = scoring_address(lines[0].subject)
    pairs = ((ratios.get((n.run, n.case, n.process, scoring)), n.ratio) for n in lines)
    gains = [whole / part for whole, part in pairs if whole and part]
    return statistics.geometric_mean(gains) if gains else None


def recorded(sources: Iterable[Path]) -> list[Record]:
    """The summaries of files and folders of records, by run and then in the order written.

    Raises:
        RecordError: see :func:`attnbench.benchmark.records.run_files` and ``read`` there.
    """
    return [row for path in run_files(sources) for row in summaries(read(path))]


def load(*paths: Path) -> pd.DataFrame:
    """Load files and folders of records into one frame, a row for each subject at a case of a run.

    Columns that hold a quantity end in its unit: ``time_s``, ``peak_bytes``.

    Raises:
        RecordError: a path is missing, has no records, or is damaged.
    """
    import pandas as pd

    return pd.json_normalize([asdict(row) for row in recorded(paths)])
