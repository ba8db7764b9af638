"""Calibration: what a machine shows for the same code against itself, case by case.

``attnbench calibrate`` measures the same subjects in several runs of several processes each, and
keeps the records in a folder of their own. The noise is worked out when it is needed, from all
calibrations made so far on this machine: calibrating again at another time adds to what is known
of the drift between runs.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attnbench.benchmark.comparing.verdict import DRIFT_SD, Noise
from attnbench.benchmark.records.record import Record
from attnbench.benchmark.records.store import read_folder

__all__ = ["FOLDER", "Key", "key_of", "noise_of", "read_calibration"]

FOLDER = "calibration"
"""Folder of calibration runs inside the folder of records."""

Key = tuple[str, str, str]
"""Contract, subject and case: what has one noise, and one row in a comparison."""


def key_of(record: Record) -> Key:
    """The row that a record belongs to."""
    return record.contract, record.subject, record.case


def read_calibration(folder: Path) -> list[Record]:
    """The records of every calibration in a folder of records; none if there was none.

    Raises:
        RecordError: a file is damaged.
    """
    return read_folder(folder / FOLDER) if (folder / FOLDER).is_dir() else []


def noise_of(records: Iterable[Record]) -> Mapping[Key, Noise]:
    """The noise of each case that was calibrated with at least two processes in a run.

    Args:
        records: of one machine; only those with status ``ok`` count.
    """
    runs: dict[Key, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record.status == "ok" and record.time_s:
            runs[key_of(record)][record.run] += map(math.log, record.process_times_s)
    found = {key: _noise(list(logs.values())) for key, logs in runs.items()}
    return {key: noise for key, noise in found.items() if noise is not None}


def _noise(runs: Sequence[Sequence[float]]) -> Noise | None:
    """Variance components of processes within runs, and of runs."""
    runs = [logs for logs in runs if len(logs) >= 2]
    df = sum(len(logs) - 1 for logs in runs)
    if df == 0:
        return None
    within = math.fsum((len(logs) - 1) * statistics.variance(logs) for logs in runs) / df
    if len(runs) < 2:
        return Noise(math.sqrt(within), df, DRIFT_SD, 0)
    # a run's mean varies by the drift, and by what its processes vary
    means = statistics.variance([statistics.fmean(logs) for logs in runs])
    expected = within * statistics.fmean([1 / len(logs) for logs in runs])
    return Noise(math.sqrt(within), df, math.sqrt(max(0.0, means - expected)), len(runs) - 1)
