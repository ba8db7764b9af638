"""What the commands that measure share: planning a session, recording it, and showing it."""

from __future__ import annotations

import contextlib
import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnbench.benchmark.measuring.quiet import TOLERANCE
from attnbench.benchmark.measuring.session import Planned, Session
from attnbench.benchmark.measuring.setting import Setting, here
from attnbench.benchmark.records import store
from attnbench.benchmark.records.record import Record
from attnbench.benchmark.workloads import BenchCase, cases_of
from attnbench.cli.survey import ask, warm_up_children
from attnbench.cli.tables import progress
from attnbench.errors import InputsError, UnknownNameError, UsageError
from attnbench.processes.pool import Task, call

__all__ = [
    "BASELINE",
    "LEGEND",
    "Place",
    "Running",
    "as_rows",
    "plan",
    "ranked",
    "reasons",
    "start",
    "statuses_of",
    "titled",
]

BASELINE = "scaled_dot"
RESULTS = Path("results/attnbench")
_MEASURING = "attnbench.benchmark.measuring.measurement"
_PRELOAD = ("torch.fx.experimental.symbolic_shapes", _MEASURING)
"""What measuring imports, 1 s together; the first is what torch imports for a gradient."""


@dataclass(frozen=True)
class Running:
    """A session and the file of its run.

    Args:
        session: what is measured.
        path: of the records.
        done: those that a resumed run already had.
    """

    session: Session
    path: Path
    done: tuple[Record, ...] = ()

    def measure(self, into: list[Record], what: str = "measuring") -> None:
        """Measure and record; every record, those already there too, goes to a list as well."""
        into += self.done
        with progress(len(self.session), what) as advance:
            advance(len(self.done), "")
            for record in self.session.records(self.done):
                store.append(self.path, record)
                into.append(record)
                advance(1, f"{record.subject}: {record.workload}")


@dataclass(frozen=True)
class Place:
    """Where a run is recorded.

    Args:
        path: of its file.
        run: its id.
        done: what it recorded before, if it is resumed.
    """

    path: Path
    run: str
    done: tuple[Record, ...] = ()


def start(
    *,
    set_name: str | None,
    workloads: Sequence[str] = (),
    inputs: Path | None = None,
    dtypes: Sequence[str] | None = None,
    results: Path = RESULTS,
    run: str | None = None,
    resume: bool = False,
    preload: Sequence[str] = (),
) -> Place:
    """Look at what needs no torch, then start the process that measuring ones are forked from.

    Args:
        set_name, workloads, inputs, dtypes: as of :func:`plan`.
        results: the folder of records.
        run: its name.
        resume: go on with that run.
        preload: modules that the process is to import besides those that measuring needs.

    Raises:
        AttnbenchError: a name is unknown, there is no such file of inputs, the folder of records
            cannot be written to, or there is no such run to resume.
    """
    cases_of(name=set_name, workload_names=workloads, dtypes=dtypes)
    if inputs is not None and not inputs.is_file():
        raise InputsError(f"there is no file {str(inputs)!r} (looked at {inputs.resolve()}).")
    place = _place(results, run, resume=resume)
    store.check_writable(results)
    warm_up_children(*_PRELOAD, *preload)
    return place


def plan(
    place: Place,
    *,
    targets: Sequence[str] | None,
    set_name: str | None = None,
    workloads: Sequence[str] = (),
    inputs: Path | None = None,
    devices: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    **more: Any,
) -> Running:
    """Plan a session: find subjects, devices and cases.

    Args:
        place: from :func:`start`.
        targets: addresses; all installed subjects if there is none.
        set_name: the named set of cases, if one is wanted.
        workloads: names.
        inputs: a file of saved ones.
        devices: all that are there by default.
        dtypes: instead of those of the set.
        more: further fields of :class:`~attnbench.benchmark.measuring.session.Session`.

    Raises:
        AttnbenchError: a subject is unknown, a file of inputs is damaged, a device is not there,
            or the run cannot be resumed here.
    """
    found = call(
        Task("devices", "attnbench.benchmark.measuring.measurement:devices", {"wanted": devices})
    )
    cases = cases_of(name=set_name, workload_names=workloads, devices=found, dtypes=dtypes)
    if inputs is not None:
        cases += [_saved(inputs, device, dtypes) for device in found]
    setting = here(place.run, command=" ".join(["attnbench", *sys.argv[1:]]))
    if place.done:
        _same_setting(place.run, place.done[0], setting)
    session = Session(subjects=_subjects(targets), cases=cases, setting=setting, **more)
    wanted = session.keys()
    return Running(session, place.path, tuple(r for r in place.done if r.key in wanted))


def _saved(path: Path, device: str, dtypes: Sequence[str] | None) -> BenchCase:
    arguments = {"path": path.resolve(), "device": device, "dtype": dtypes[0] if dtypes else None}
    case: BenchCase = call(Task(str(path), "attnbench.benchmark.workloads:saved", arguments))
    return case


def _subjects(targets: Sequence[str] | None) -> list[Planned]:
    """The subjects asked for, and the baseline that their times are set against."""
    rows = ask("subject_rows", targets=targets or None)
    if targets and all(row["subject"] != BASELINE for row in rows):
        with contextlib.suppress(UnknownNameError):  # without built-in plugins there is none
            rows = [*ask("subject_rows", targets=[BASELINE]), *rows]
    planned = [Planned(row["target"], row["subject"], row["kind"]) for row in rows]
    return list(dict.fromkeys(planned))


def _place(results: Path, run: str | None, *, resume: bool) -> Place:
    if run is not None and not re.fullmatch(r"\w[\w.-]*", run):
        raise UsageError(f"--run {run}: it names a file; use letters, digits, '_', '-' and '.'.")
    if not resume:
        run = run or store.new_run()
        if store.run_path(results, run).exists():
            raise UsageError(f"run {run!r} is there already: add --resume, or choose another name.")
        return Place(store.run_path(results, run), run)
    if run is None:
        runs = sorted(results.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
        if not runs:
            raise UsageError(f"there is no run to resume in {results}; leave --resume out.")
        run = runs[-1].stem
    path = store.run_path(results, run)
    if not path.exists():
        raise UsageError(f"there is no run {run!r} in {results}; leave --resume out.")
    return Place(path, run, tuple(store.read(path)))


def _same_setting(run: str, first: Record, now: Setting) -> None:
    """A run has one setting: what was measured elsewhere, or of other code, is another run's."""
    pairs: list[tuple[str, Any, Any]] = [("commit", first.commit, now.commit)]
    pairs += [(n, first.machine.get(n), now.machine.get(n)) for n in ("node", "processor")]
    pairs += [(name, first.versions.get(name), value) for name, value in now.versions.items()]
    for what, then, current in pairs:
        if then != current:
            raise UsageError(
                f"run {run!r} began with {what} {then or 'none'}, and now it is "
                f"{current or 'none'}: its numbers would not be comparable. Start another run "
                "without --resume."
            )


LEGEND = """\
time_ms   median time of one call; q1_ms and q3_ms are quartiles, of the samples of a process, or
          of the medians of several processes
x_dot     time over that of scaled_dot under the same contract
peak_MiB  most memory of tensors during a call beyond inputs and parameters
error     largest error against float64 as a multiple of what is allowed: up to 1 is agreement
band_%    bytes that its operators move a second, of this machine's measured copy bandwidth
matmul_%  matrix products a second, of this machine's measured rate
first_ms  first call in a process, with whatever it compiles
Only rows with status ok are ranked, fastest first; the others say why below."""


def titled(record: Record) -> str:
    """One line about a case and its contract, above its table."""
    lead = "x".join(map(str, record.lead)) or "none"
    grouped = f" in groups of {record.kv_heads} key heads" if record.kv_heads else ""
    sizes = f"Eq={record.query_size} Ek={record.key_size} Ev={record.value_size}"
    return (
        f"{record.workload}: batch and heads {lead}{grouped}, L={record.q_len} S={record.kv_len} "
        f"{sizes}, {record.dtype}, mask {record.mask}, on {record.device_name or record.device}\n"
        f"contract: {record.contract}"
    )


def ranked(records: Iterable[Record]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Rows to print for each contract and case: the ranked ones first, fastest first."""
    groups: dict[tuple[str, str], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        groups[record.contract, record.case][record.subject].append(record)
    tables = {}
    for key, by_subject in groups.items():
        rows = {name: _row(name, group) for name, group in by_subject.items()}
        base = rows.get(BASELINE, {})
        for row in rows.values():
            if row["status"] == base.get("status") == "ok":
                row["x_dot"] = row["time_ms"] / base["time_ms"]
        tables[key] = sorted(
            rows.values(), key=lambda row: (row["status"] != "ok", row["time_ms"] or 0.0)
        )
    return tables


def _row(subject: str, records: Sequence[Record]) -> dict[str, Any]:
    good = [record for record in records if record.status == "ok"]
    status = "ok" if good else Counter(r.status for r in records).most_common(1)[0][0]
    used = good or [record for record in records if record.status == status]
    one = used[-1]
    times = [record.time_s for record in used if record.time_s is not None]
    low, high = one.time_q1_s, one.time_q3_s
    if len(times) > 1:
        low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return {
        "subject": subject,
        "time_ms": _scaled(statistics.median(times), 1e3) if times else None,
        "q1_ms": _scaled(low, 1e3),
        "q3_ms": _scaled(high, 1e3),
        "x_dot": None,
        "peak_MiB": _scaled(one.peak_bytes, 2**-20),
        "error": one.error_ratio,
        "band_%": _scaled(one.bandwidth_share, 100),
        "matmul_%": _scaled(one.matmul_share, 100),
        "first_ms": _scaled(one.first_call_s, 1e3),
        "processes": len(used),
        "status": status,
        "reason": one.reason,
    }


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def reasons(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Why rows are not ranked: one line for all that a busy machine made void, and one each."""
    found: dict[str, list[str]] = defaultdict(list)
    void = 0
    for row in rows:
        if row["status"] == "void":
            void += 1
        elif row["reason"]:
            found[f"{row['status']}: {row['reason'].splitlines()[0]}"].append(row["subject"])
    lines = [f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in found.items()]
    if void:
        lines.append(
            f"{void} void: the machine was busy (a sentinel was more than {TOLERANCE:.0%} off its "
            "idle value); measure again when it is idle"
        )
    return lines


def statuses_of(records: Iterable[Record]) -> list[str]:
    """Statuses for the exit code: a subject that is wrong has failed."""
    return [
        "failed"
        if record.status == "unverified" and (record.error_ratio or 0) > 1
        else record.status
        for record in records
    ]


def as_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Records as plain data, for JSON."""
    return [asdict(record) for record in records]
