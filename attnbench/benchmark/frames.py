"""Recorded numbers as one tidy pandas frame: attnbench's own records and asv's results.

A row is the measurement of one subject at one case: one record of attnbench, or one commit of asv.
Names of columns that hold a quantity end in its unit: ``time_s``, ``peak_bytes``. A column that
only one of the two sources fills is missing (``NaN`` or ``None``) in the rows of the other.
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

import pandas as pd

from attnbench.benchmark.contract import LAYER_DIRECTIONS
from attnbench.benchmark.records.record import Record
from attnbench.benchmark.records.store import content_of, read_all
from attnbench.errors import RecordError

__all__ = ["asv_frame", "load", "records_frame"]

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


def load(*paths: Path) -> pd.DataFrame:
    """Load files and folders of records, and folders of asv's results, into one frame.

    Raises:
        RecordError: a path is missing, contains neither, or is damaged.
    """
    frames = [
        asv_frame(path) if (path / "benchmarks.json").is_file() else records_frame(read_all([path]))
        for path in paths
    ]
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
    rows = [row for path in files for row in _asv_rows(path, suite)]
    if not rows:
        raise RecordError(
            f"{folder} has no results of a suite made by attnbench.asv; run 'asv run' first."
        )
    # asv stores each quantity separately; here the quantities of a case are columns of one row
    keys = [n for n in rows[0] if n not in {"quantity", "value", "status", *_QUARTILES}]
    table: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        target = table.setdefault(key, {"source": "asv", **row})
        target[row["quantity"]] = row["value"]
        if row["status"] != "ok":
            target["status"] = row["status"]
        if row["quantity"] == "time_s":
            target.update({f"time_{name}_s": row[name] for name in _QUARTILES})
    frame = pd.DataFrame(list(table.values())).drop(columns=["quantity", "value", *_QUARTILES])
    frame["created"] = pd.to_datetime(frame["created"], utc=True, unit="ms")
    return frame


_QUARTILES = ("q1", "q3")


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
    direction, quantity = _TRACKED[method]
    cases = list(itertools.product(*result["params"]))
    # asv shortens a list that holds nothing but failures
    columns = {
        name: result.get(source) or [None] * len(cases)
        for name, source in (
            ("value", "result"),
            ("q1", "stats_q_25"),
            ("q3", "stats_q_75"),
        )
    }
    for number, (case, device) in enumerate(cases):
        value = columns["value"][number]
        if value is not None and math.isnan(value):
            continue  # n/a: there was nothing to measure
        name = str(ast.literal_eval(case))
        prefix = name.partition(",")[0]  # the name of a layer's case begins with its direction
        yield {
            **common,
            "subject": subject,
            "case": name,
            "device": ast.literal_eval(device),
            "direction": prefix if prefix in LAYER_DIRECTIONS else direction,
            "contract": f"asv, version {result['version']}",
            "status": "failed" if value is None else "ok",
            "quantity": quantity,
            "value": value,
            **{name: columns[name][number] for name in _QUARTILES},
        }
