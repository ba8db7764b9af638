"""Recorded numbers as one tidy pandas frame: attnbench's own records and asv's results.

A row of a summary is one subject at one case: the processes of one run of attnbench, or one commit
of asv. Names of columns that hold a quantity end in its unit: ``time_s``, ``peak_bytes``. A column
that only one of the two sources fills is missing (``NaN`` or ``None``) in the rows of the other.
"""

from __future__ import annotations

import ast
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from attnbench.benchmark.contract import LAYER_DIRECTIONS
from attnbench.benchmark.machine import mean_load
from attnbench.benchmark.records import Record, content_of, read, run_files, scoring_address
from attnbench.benchmark.timing.blocks import MOST_LOG
from attnbench.errors import RecordError

__all__ = ["asv_frame", "load", "records_frame", "summaries", "summary"]

_ROW = ["run", "contract", "subject", "case"]
"""What the processes of a row share."""

_NESTED = ("machine", "versions", "sentinel", "inputs")
_PLAIN = tuple(f.name for f in fields(Record) if f.name not in (*_NESTED, "samples_s", "schema"))

ASV_FORMAT = 2
"""The version of asv's result files that this module reads."""

_TRACKED = {
    "track_time": ("forward", "time_s"),
    "track_time_backward": ("forward_backward", "time_s"),
    "track_peak_bytes": ("forward", "peak_bytes"),
    "track_error": ("forward", "error_ratio"),
    "track_compile_time": ("forward", "first_call_s"),
    "track_cache_bytes": ("decode", "cache_bytes_per_token"),
}
"""The direction and the column of each benchmark method of :mod:`attnbench.asv`."""


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
    """Load files and folders of records, and folders of asv's results, into one frame.

    Raises:
        RecordError: a path is missing, contains neither, or is damaged.
    """
    frames = []
    for path in paths:
        if (path / "benchmarks.json").is_file():
            frames.append(asv_frame(path))
        else:
            frames.append(records_frame(recorded([path])))
    return pd.concat(frames, ignore_index=True) if frames else records_frame(())


def records_frame(records: Iterable[Record]) -> pd.DataFrame:
    """Convert records to a frame, one row each.

    The entries of ``machine``, ``versions``, ``sentinel`` and ``inputs`` become columns. The
    samples are left out; the column ``samples`` holds their number.
    """
    rows = []
    for record in records:
        row: dict[str, Any] = {"source": "attnbench"}
        row.update((name, getattr(record, name)) for name in _PLAIN)
        row["lead"] = "x".join(map(str, record.lead))
        row["samples"] = len(record.samples_s)
        for prefix in _NESTED:
            content: Mapping[str, Any] = getattr(record, prefix) or {}
            row.update((f"{prefix.removesuffix('s')}_{key}", v) for key, v in content.items())
        rows.append(row)
    frame = pd.DataFrame(rows, columns=None if rows else ["source", *_PLAIN, "samples"])
    frame["created"] = pd.to_datetime(frame["created"], utc=True, format="ISO8601")
    return frame


def asv_frame(folder: Path) -> pd.DataFrame:
    """Convert the results in asv's ``results_dir`` to a frame.

    Only results of suites made by :mod:`attnbench.asv` are read.

    Raises:
        RecordError: the folder has no such results, or a file is damaged or of another version.
    """
    benchmarks = _json(folder / "benchmarks.json")
    suite = {n: row for n, row in benchmarks.items() if isinstance(row, dict) and "subject" in row}
    files = [path for path in sorted(folder.glob("*/*.json")) if path.name != "machine.json"]
    rows = pd.DataFrame([row for path in files for row in _asv_rows(path, suite)])
    if rows.empty:
        raise RecordError(
            f"{folder} has no results of a suite made by attnbench.asv; run 'asv run' first."
        )
    # asv stores each quantity separately; here the quantities of a case are columns of one row
    frame = rows.groupby(_ASV_ROW, sort=False, dropna=False).first().reset_index()
    frame["created"] = pd.to_datetime(frame["created"], utc=True, unit="ms")
    return frame.assign(source="asv", status=frame["failed"].map({True: "failed"}).fillna("ok"))


_ASV_ROW = [
    "commit",
    "created",
    "machine_node",
    "environment",
    "subject",
    "case",
    "device",
    "direction",
    "contract",
]


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(content_of(path))
    except ValueError as error:
        raise RecordError(f"{path} is damaged: it is not JSON ({error}).") from None
    if not isinstance(content, dict):
        raise RecordError(f"{path} is not one of asv's files: it is not a JSON object.")
    if content.get("version") != ASV_FORMAT:
        raise RecordError(
            f"{path} has version {content.get('version')!r} of asv's format, and this attnbench "
            f"reads {ASV_FORMAT}; 'asv update' brings older files up to date."
        )
    return content


def _asv_rows(path: Path, suite: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    content = _json(path)
    try:
        common = {
            "commit": content["commit_hash"],
            "created": content["date"],
            "machine_node": content["params"]["machine"],
            "environment": content["env_name"],
        }
        for name, values in content["results"].items():
            method = name.rpartition(".")[2]
            if name in suite and method in _TRACKED:
                result = dict(zip(content["result_columns"], values, strict=False))
                yield from _case_rows(common, suite[name]["subject"], method, result)
    except (KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"{path} is damaged, or not one of asv's result files: {type(error).__name__}: {error}."
        ) from None


def _case_rows(
    common: Mapping[str, Any], subject: str, method: str, result: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """A row of one quantity for each case; asv shortens a list that holds nothing but failures."""
    direction, quantity = _TRACKED[method]
    cases = list(itertools.product(*result["params"]))
    values, low, high = (
        result.get(name) or [None] * len(cases) for name in ("result", "stats_q_25", "stats_q_75")
    )
    for number, (case, device) in enumerate(cases):
        if values[number] is not None and math.isnan(values[number]):
            continue  # n/a: there was nothing to measure
        name = str(ast.literal_eval(case))
        prefix = name.partition(",")[0]  # the name of a layer's case begins with its direction
        row = {
            **common,
            "subject": subject,
            "case": name,
            "device": ast.literal_eval(device),
            "direction": prefix if prefix in LAYER_DIRECTIONS else direction,
            "contract": f"asv, version {result['version']}",
            "failed": True if values[number] is None else None,
            quantity: values[number],
        }
        if quantity == "time_s":
            row |= {"time_q1_s": low[number], "time_q3_s": high[number]}
        yield row
