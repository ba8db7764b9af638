"""What the processes of a run say together: medians, intervals and gains of each row.

Names of quantities end in their unit: ``time_s``, ``peak_bytes``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from attnbench.benchmark.machine import mean_load
from attnbench.benchmark.records import Record, read, run_files, scoring_address
from attnbench.benchmark.timing.blocks import MOST_LOG

_ROW = ["run", "contract", "subject", "case"]
"""What the processes of a row share."""


def summaries(lines: Iterable[Record]) -> list[Record]:
    """What the processes of each row say together, in the order of the rows' first lines."""
    names = [f.name for f in fields(Record)]
    frame = pd.DataFrame([[getattr(line, n) for n in names] for line in lines], columns=names)
    return [_record(row) for row in summary(frame).to_dict("records")]


def recorded(sources: Iterable[Path]) -> list[Record]:
    """The summaries of files and folders of records, by run and then in the order written.

    Raises:
        RecordError: see :func:`attnbench.benchmark.records.run_files` and ``read`` there.
    """
    return [row for path in run_files(sources) for row in summaries(read(path))]


def _record(row: Mapping[Any, Any]) -> Record:
    """A row of a summary as a record: without what is missing, and with whole numbers."""
    known: dict[str, Any] = {}
    for name, value in row.items():
        if value is not None and not (isinstance(value, float) and math.isnan(value)):
            known[name] = int(value) if name in _WHOLE else value
    return Record(**known)


_WHOLE = frozenset(f.name for f in fields(Record) if str(f.type).startswith("int"))


def summary(lines: pd.DataFrame) -> pd.DataFrame:
    """A row for all processes of a run that measured a subject at a case.

    Times are medians over processes, ratios geometric means with Student's interval; of a single
    process the interval is that over its blocks. A row with a process that is not ok has its status
    and no ratio.

    Args:
        lines: a row for each line of a file, with the fields of :class:`Record`.
    """
    lines = lines.drop_duplicates([*_ROW, "process"], keep="last")
    lines = lines.assign(log=np.log(lines["ratio"].astype(float)))
    rows = lines.sort_values("process", kind="stable").groupby(_ROW, sort=False)
    table = rows.first()
    table = table.assign(
        process=0,
        times_s=rows["time_s"].agg(_known),
        ratios=rows["ratio"].agg(_known),
        samples_s=rows["samples_s"].agg(lambda parts: tuple(itertools.chain(*parts))),
        time_s=rows["time_s"].median(),
        tokens_per_s=rows["tokens_per_s"].median(),
        load=rows["load"].agg(mean_load),
        gain=_gains(lines),
    )
    _put_quartiles(table)
    logs = rows["log"].agg(["count", "mean", "std"])
    several = logs[logs["count"] > 1]
    margin = special.stdtrit(several["count"] - 1, 0.975) * several["std"] / several["count"] ** 0.5
    margin = margin.where(margin < MOST_LOG)
    table.loc[several.index, "ratio"] = np.exp(several["mean"])
    table.loc[several.index, "ratio_low"] = np.exp(several["mean"] - margin)
    table.loc[several.index, "ratio_high"] = np.exp(several["mean"] + margin)
    faults = lines[lines["status"] != "ok"].groupby(_ROW)[["status", "reason"]].first()
    table.loc[faults.index, ["status", "reason"]] = faults
    table.loc[faults.index, ["baseline", "ratio", "ratio_low", "ratio_high", "gain"]] = None
    for place in faults.index:
        table.at[place, "ratios"] = ()
    return table.drop(columns="log").reset_index()


def _known(values: pd.Series[Any]) -> tuple[float, ...]:
    return tuple(values.dropna())


def _put_quartiles(table: pd.DataFrame) -> None:
    """Quartiles over processes if there are at least three, else over slots."""
    for place, times, samples, median in table[["times_s", "samples_s", "time_s"]].itertuples():
        values = times if len(times) >= 3 else samples
        if len(values):
            low, high = np.quantile(values, (0.25, 0.75))
            table.loc[[place], "time_q1_s"] = min(low, median)
            table.loc[[place], "time_q3_s"] = max(high, median)


def _gains(lines: pd.DataFrame) -> pd.Series[float]:
    """How many times faster each kernel is than its scoring function.

    Only processes that measured both count: what is common to both in a process cancels.
    """
    kernels = lines[lines["kind"] == "kernel"]
    kernels = kernels.assign(scoring=kernels["subject"].map(scoring_address))
    both = kernels.merge(
        lines[["run", "case", "process", "subject", "log"]],
        left_on=["run", "case", "process", "scoring"],
        right_on=["run", "case", "process", "subject"],
        suffixes=("", "_of_scoring"),
    )
    both["gain"] = both["log_of_scoring"] - both["log"]
    return np.exp(both.groupby(_ROW)["gain"].mean())


def load(*paths: Path) -> pd.DataFrame:
    """Load files and folders of records into one frame, a row for each subject at a case of a run.

    Columns that hold a quantity end in its unit: ``time_s``, ``peak_bytes``.

    Raises:
        RecordError: a path is missing, has no records, or is damaged.
    """
    return pd.json_normalize([asdict(row) for row in recorded(paths)])
