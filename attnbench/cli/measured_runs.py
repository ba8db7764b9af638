"""Runs of the commands that measure.

A run is recorded in a file of its own, which a later run of the same name goes on with.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.benchmark import records as store
from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.machine import here
from attnbench.benchmark.records import BASELINES, Record, baseline_of, scoring_address
from attnbench.benchmark.session import Row, Session
from attnbench.benchmark.timing.contract import Contract
from attnbench.benchmark.workloads import LAYER_SIZE, Selection
from attnbench.cli.plugin_loading import ask
from attnbench.errors import UnknownNameError, UsageError
from attnbench.processes.pool import Task, call
from attnbench.registry.address import Address, parse_address
from attnbench.report.printing import progress

PRELOAD = (
    "torch.fx.experimental.symbolic_shapes",
    "attnbench.benchmark.measure",
)
"""Imports of measuring that take 1.3 s together, in each process; torch imports the first one for a
gradient."""


@dataclass
class Run:
    """A run: its file, what is measured, what the file holds, and whether it ended early."""

    path: Path
    session: Session
    done: Sequence[Record]
    interrupted: bool = False

    def measure(self) -> list[Record]:
        """Measure and record until the end or Ctrl-C; returns what all processes say together.

        Each record is of one process, and appended to the run's file as it comes, so that a run of
        the same name can go on where it stopped.
        """
        from attnbench.benchmark.frames import summaries

        lines = []
        count = self.session.processes * len(self.session.rows)
        with contextlib.suppress(KeyboardInterrupt), progress(count, "measuring") as step:
            self.interrupted = True
            for record in self.session.records(self.done):
                if record not in self.done:
                    store.append(self.path, record)
                lines.append(record)
                step(1, f"{record.subject}: {record.case}")
            self.interrupted = False
        return summaries(lines)


@contextlib.contextmanager
def planned(
    results: Path,
    run: str | None = None,
    *,
    targets: Sequence[Address] | None,
    selection: Selection,
    devices: Sequence[str] | None,
    baseline: str | None = None,
    with_options: bool = True,
    **options: Any,
) -> Iterator[Run]:
    """Find the subjects, devices and cases of a run, whose file is locked.

    Args:
        results: folder of the records.
        run: name of the run.
        targets: addresses of the subjects; ``None`` for all.
        selection: the cases.
        devices: devices; by default the CPU and the accelerator, if any.
        baseline: subject that takes the place of a usual baseline.
        with_options: whether all subjects are also those that have options.
        options: contract and limits, as of :class:`~attnbench.benchmark.session.Session`.

    Raises:
        AttnbenchError: the folder cannot be written, a subject, case or device is wrong, or a run
            of this name cannot be gone on with here.
    """
    if run is not None and not re.fullmatch(r"\w[\w.-]*", run):
        raise UsageError(f"--run {run} names a file: use letters, digits, '_', '-' and '.' only.")
    path = store.run_path(results, run or store.new_run())
    with store.claimed(path):
        cases = _cases(selection, devices, options["contract"])
        setting = here(run=path.stem, command=" ".join(["attnbench", *sys.argv[1:]]))
        baselines = _baselines(baseline)
        done = store.read(path) if path.exists() else []
        for record in done:
            _check_same(record, setting, baselines)
        subjects = _subjects(targets, baselines, [case.of_layers for case in cases])
        rows = [
            Row(row["target"], name, row["kind"], sized)
            for case in cases
            for name, row in subjects.items()
            if case.suits(row["kind"]) and (targets or with_options or "(" not in name)
            for sized in [case.sized(row["layer"]["size"]) if row["layer"] else case]
        ]
        session = Session(rows=rows, setting=setting, baselines=baselines, **options)
        yield Run(path, session, done)


def _cases(
    selection: Selection, devices: Sequence[str] | None, contract: Contract
) -> list[BenchCase]:
    """The cases on the devices; by default the CPU and the accelerator, if any."""
    available = devices or ask("attnbench.subject.devices:available_devices")
    for name in devices or ():
        ask("attnbench.subject.devices:check_device", name=name)
    is_cuda = any(name.startswith("cuda") for name in available)
    if contract.timing == "device" and not is_cuda:
        raise UsageError(
            f"--timing device replays CUDA graphs, but the devices are {', '.join(available)}; "
            "omit it, or name a CUDA device with --device."
        )
    cases = selection.cases(available, layers=True)
    for device in available if selection.inputs is not None else ():
        saved = selection.saved(device)
        cases.append(call(Task(saved["path"], "attnbench.benchmark.workloads:saved", saved)))
    return cases


def _baselines(baseline: str | None) -> tuple[str, str]:
    """The baselines of attention and of layers, one of which may be chosen."""
    if baseline is None:
        return BASELINES
    rows = ask("subject_rows", targets=[parse_address(baseline)], size=LAYER_SIZE)
    if len(rows) != 1:
        names = ", ".join(row["subject"] for row in rows)
        raise UsageError(f"--baseline {baseline} stands for {names}; name one of them.")
    attention, layers = BASELINES
    return (attention, baseline) if rows[0]["kind"] == "layer" else (baseline, layers)


def _subjects(
    targets: Sequence[Address] | None, baselines: tuple[str, str], of_layers: Sequence[bool]
) -> dict[str, dict[str, Any]]:
    """The requested subjects, their baselines, and the scoring functions of kernels, by name."""
    rows = ask("subject_rows", targets=targets or None, size=LAYER_SIZE)
    unsuited = [row["subject"] for row in rows if (row["kind"] == "layer") not in of_layers]
    if targets and unsuited:
        raise UsageError(
            f"{', '.join(unsuited)}: a layer is measured at prefill and decode, but --workload and "
            "--inputs have a query, key and value. Name a set or a length instead, such as --set "
            "default or --length 1024."
        )
    own_kernels = [
        row for row in rows if row["kind"] == "kernel" and str(row["target"]) == row["subject"]
    ]
    partners = (baseline_of(row["kind"], baselines) for row in rows)
    extras = dict.fromkeys((*partners, *(scoring_address(row["subject"]) for row in own_kernels)))
    names = {row["subject"] for row in rows}
    for name in reversed([name for name in extras if targets and name not in names]):
        with contextlib.suppress(UnknownNameError):  # no baseline without the built-in plugins
            rows = [*ask("subject_rows", targets=[parse_address(name)], size=LAYER_SIZE), *rows]
    return {row["subject"]: row for row in rows}


def _check_same(record: Record, setting: Mapping[str, Any], baselines: tuple[str, str]) -> None:
    """Refuse to go on with a run in another setting: other code, machine or baseline."""
    baseline = baseline_of(record.kind, baselines)
    pairs: list[tuple[str, Any, Any]] = [("commit", record.commit, setting["commit"])]
    pairs += [(n, record.machine.get(n), setting["machine"][n]) for n in ("node", "processor")]
    pairs += [(n, record.versions.get(n), version) for n, version in setting["versions"].items()]
    pairs += [("the baseline", record.baseline or baseline, baseline)]
    for label, old, new in pairs:
        if old != new:
            raise UsageError(
                f"run {record.run!r} began with {label} {old or 'none'}, but now it is "
                f"{new or 'none'}, so its numbers would not be comparable. Choose another name "
                "with --run."
            )
