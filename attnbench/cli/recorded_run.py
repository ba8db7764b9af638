"""A run of the commands that measure: where it is recorded, its plan, and how it is resumed."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from attnbench.benchmark import records
from attnbench.benchmark.machine import Setting, here
from attnbench.benchmark.records import BASELINES, Record, baseline_of, scoring_address
from attnbench.benchmark.session import Planned, Session
from attnbench.benchmark.workloads import LAYER_SIZE, Selection
from attnbench.cli.plugin_loading import ask, warm_up_children
from attnbench.errors import PluginError, UnknownNameError, UsageError
from attnbench.processes.cluster import Machine
from attnbench.processes.pool import Task, call
from attnbench.registry.address import Address, parse_address

_MEASURING = "attnbench.benchmark.measure"
PRELOAD = ("torch.fx.experimental.symbolic_shapes", _MEASURING)
"""Imports of measuring that take 1 s together; torch imports the first one for a gradient."""


@dataclass(frozen=True)
class RunPlace:
    """The place where a run is recorded.

    Args:
        path: file of the run.
        run: id of the run.
        done: earlier records, if the run is resumed.
        claim: lock that keeps other processes from the file.
    """

    path: Path
    run: str
    done: tuple[Record, ...] = ()
    claim: FileLock | None = None


@dataclass(frozen=True)
class RunSession:
    """A session and the place of its records."""

    session: Session
    place: RunPlace
    left_out: tuple[str, ...] = ()

    @property
    def machine(self) -> str:
        """The name of the machine in its cluster; empty for this machine."""
        return "" if self.session.machine is None else self.session.machine.name

    def records(self) -> Iterator[Record]:
        """Measure; yields the records that the run does not have yet, as they come."""
        return self.session.records(self.place.done)

    def end(self) -> None:
        """Release the lock."""
        if self.place.claim is not None:
            records.release(self.place.claim)


def start(
    results: Path, run: str | None = None, *, resume: bool = False, preload: Sequence[str] = ()
) -> RunPlace:
    """Find the place of a run, then start the server of measuring processes.

    Raises:
        AttnbenchError: the folder of records is not writable, or there is no such run to resume.
    """
    place = _place(results, run, resume=resume)
    records.check_writable(results)
    claim = records.claim(place.path)
    place = _place(results, place.run, resume=resume)  # another may have recorded it meanwhile
    warm_up_children(*PRELOAD, *preload)
    return replace(place, claim=claim)


def plan(
    place: RunPlace,
    selection: Selection,
    *,
    targets: Sequence[Address] | None,
    devices: Sequence[str] | None = None,
    with_options: bool = True,
    machine: Machine | None = None,
    baseline: str | None = None,
    **options: Any,
) -> RunSession:
    """Plan a session: find subjects, devices and cases.

    Raises:
        AttnbenchError: a subject is unknown, a file of inputs is damaged, a device is not
            available, or the run cannot be resumed here.
    """
    perform = call if machine is None else machine.call
    if machine is not None and not machine.has_accelerator:
        devices = [name for name in devices or ("cpu",) if name.startswith("cpu")]
    available = perform(Task("devices", "attnbench.benchmark.measure:devices", {"wanted": devices}))
    if options["contract"].timing == "device" and not any(d.startswith("cuda") for d in available):
        raise UsageError(
            f"--timing device replays CUDA graphs, but the devices are {', '.join(available)}; "
            "omit it, or name a CUDA device with --device."
        )
    cases = selection.cases(available, layers=True)
    for device in available if selection.inputs is not None else ():
        saved = selection.saved(device)
        cases.append(perform(Task(saved["path"], "attnbench.benchmark.workloads:saved", saved)))
    identity = {"run": place.run, "command": " ".join(["attnbench", *sys.argv[1:]])}
    setting = here(**identity)
    if machine is not None:
        setting = perform(Task("setting", "attnbench.benchmark.machine:here", identity))
        setting = replace(setting, machine={"name": machine.name, **setting.machine})
    if place.done:
        _same_setting(place.run, place.done[0], setting)
    baselines = _baselines(baseline)
    _same_baselines(place, baselines)
    subjects = _subjects(targets, baselines)
    omitted = () if with_options or targets else tuple(s for s in subjects if "(" in s.name)
    subjects = [subject for subject in subjects if subject not in omitted]
    unsuited = [s.name for s in subjects if not any(case.suits(s.kind) for case in cases)]
    unsuited = [name for name in unsuited if name not in baselines] or unsuited
    if targets and unsuited:
        raise UsageError(
            f"{', '.join(unsuited)}: a layer is measured at prefill and decode, but --workload and "
            "--inputs have a query, key and value. Name a set or a length instead, such as --set "
            "default or --length 1024."
        )
    session = Session(
        subjects=subjects,
        cases=cases,
        setting=setting,
        machine=machine,
        baselines=baselines,
        **options,
    )
    done = tuple(record for record in place.done if session.holds(record))
    names = tuple(subject.name for subject in omitted)
    return RunSession(session, replace(place, done=done), names)


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


def _rows(targets: Sequence[Address] | None) -> list[dict[str, Any]]:
    """Rows of subjects from one process, or from one each where a target disturbs the others."""
    try:
        rows: list[dict[str, Any]] = ask("subject_rows", targets=targets or None, size=LAYER_SIZE)
        return rows
    except PluginError:
        if not targets or len(targets) == 1:
            raise
    rows = []
    for target in targets:
        try:
            rows += ask("subject_rows", targets=[target], size=LAYER_SIZE)
        except PluginError as error:
            raise PluginError(f"{target} cannot be looked up: {error}") from None
    return rows


def _subjects(targets: Sequence[Address] | None, baselines: tuple[str, str]) -> list[Planned]:
    """The requested subjects, their baselines, and the scoring functions of kernels."""
    rows = _rows(targets)
    names = {row["subject"] for row in rows}
    kernels = [
        row for row in rows if row["kind"] == "kernel" and str(row["target"]) == row["subject"]
    ]
    partners = (baseline_of(row["kind"], baselines) for row in rows)
    extras = dict.fromkeys((*partners, *(scoring_address(row["subject"]) for row in kernels)))
    for name in reversed([name for name in extras if targets and name not in names]):
        with contextlib.suppress(UnknownNameError):  # no baseline without the built-in plugins
            rows = [*ask("subject_rows", targets=[parse_address(name)], size=LAYER_SIZE), *rows]
    subjects = [
        Planned(row["target"], row["subject"], row["kind"], (row["layer"] or {}).get("size"))
        for row in rows
    ]
    return list(dict.fromkeys(subjects))


def _place(results: Path, run: str | None, *, resume: bool) -> RunPlace:
    if run is not None and not re.fullmatch(r"\w[\w.-]*", run):
        raise UsageError(f"--run {run} names a file: use letters, digits, '_', '-' and '.' only.")
    if not resume:
        run = run or records.new_run()
        path = records.run_path(results, run)
        if path.exists():
            raise UsageError(f"run {run!r} already exists: add --resume, or choose another name.")
        return RunPlace(path, run)
    known = records.runs_in(results)
    if run is None and not known:
        raise UsageError(f"there is no run to resume in {results}; omit --resume.")
    run = run or known[0]
    if run not in known:
        raise UsageError(f"there is no run {run!r} in {results}; omit --resume.")
    path = records.run_path(results, run)
    return RunPlace(path, run, tuple(records.read(path)))


def _same_baselines(place: RunPlace, baselines: tuple[str, str]) -> None:
    """Refuse to resume a run whose ratios have another baseline."""
    for record in place.done:
        baseline = baseline_of(record.kind, baselines)
        if record.baseline not in (None, baseline):
            raise UsageError(
                f"run {place.run!r} began with the baseline {record.baseline}, but now it is "
                f"{baseline}. Resume it with --baseline {record.baseline}, or "
                "start another run without --resume."
            )


def _same_setting(run: str, record: Record, setting: Setting) -> None:
    """Refuse to resume a run in another setting: on another machine or with other code."""
    pairs: list[tuple[str, Any, Any]] = [("commit", record.commit, setting.commit)]
    pairs += [(n, record.machine.get(n), setting.machine.get(n)) for n in ("node", "processor")]
    pairs += [(name, record.versions.get(name), value) for name, value in setting.versions.items()]
    for label, old, new in pairs:
        if old != new:
            raise UsageError(
                f"run {run!r} began with {label} {old or 'none'}, but now it is "
                f"{new or 'none'}, so its numbers would not be comparable. Start another run "
                "without --resume."
            )
