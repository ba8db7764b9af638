"""What the commands that measure share: planning a session, recording it, and showing it."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock

from attnbench.benchmark.grid import busy, half_width, scoring_of
from attnbench.benchmark.machine.setting import Setting, here
from attnbench.benchmark.measuring.session import Planned, Session, Taken
from attnbench.benchmark.measuring.takes import Take
from attnbench.benchmark.records import store
from attnbench.benchmark.records.record import BASELINE, Record
from attnbench.benchmark.workloads import BenchCase, cases_of
from attnbench.cli.plugin_loading import ask, warm_up_children
from attnbench.cli.printing.tables import progress
from attnbench.errors import InputsError, UnknownNameError, UsageError
from attnbench.processes.pool import Task, call
from attnbench.report.summary import Row, rows

__all__ = [
    "BASELINE",
    "LEGEND",
    "Place",
    "Running",
    "as_rows",
    "busy_line",
    "percent",
    "plan",
    "ranked",
    "reasons",
    "start",
    "statuses_of",
    "titled",
]

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
        left_out: installed subjects that are not measured.
        claim: keeps other processes from the file until all is measured.
    """

    session: Session
    path: Path
    done: tuple[Record, ...] = ()
    left_out: tuple[str, ...] = ()
    claim: FileLock | None = None

    def measure(self, into: list[Record]) -> None:
        """Measure and record; the newest record of each row goes to a list as well.

        Takes are kept beside the records until the session is complete, so that a run that was
        ended goes on where it was.
        """
        found = {record.key: record for record in self.done}
        into[:] = found.values()
        journal = self.path.with_suffix(".partial")
        taken = _read_journal(journal) if journal.exists() else []
        with progress(self.session.processes * len(self.session), "measuring") as advance:
            advance(len(taken), "")
            for event in self.session.events(self.done, taken):
                if isinstance(event, Taken):
                    _add_to_journal(journal, event)
                    advance(1, f"{event.subject}: {event.case}")
                else:
                    store.append(self.path, event)
                    found[event.key] = event
                    into[:] = found.values()
        journal.unlink(missing_ok=True)
        if self.claim is not None:
            self.claim.release()
            Path(self.claim.lock_file).unlink(missing_ok=True)


def _add_to_journal(path: Path, taken: Taken) -> None:
    line = {**vars(taken), "take": taken.take.as_data()}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def _read_journal(path: Path) -> list[Taken]:
    """The takes of a run that was ended; a line that was cut short is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            data = json.loads(line)
            found.append(Taken(**{**data, "take": Take.of_data(data["take"])}))
    return found


@dataclass(frozen=True)
class Place:
    """Where a run is recorded.

    Args:
        path: of its file.
        run: its id.
        done: what it recorded before, if it is resumed.
        claim: keeps other processes from the file.
    """

    path: Path
    run: str
    done: tuple[Record, ...] = ()
    claim: FileLock | None = None


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
    claim = store.claim(place.path)
    place = _place(results, place.run, resume=resume)  # another may have recorded it meanwhile
    warm_up_children(*_PRELOAD, *preload)
    return replace(place, claim=claim)


def plan(
    place: Place,
    *,
    targets: Sequence[str] | None,
    set_name: str | None = None,
    workloads: Sequence[str] = (),
    inputs: Path | None = None,
    devices: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    with_options: bool = True,
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
        with_options: whether subjects with options are measured too, if all are.
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
    subjects = _subjects(targets)
    left_out = () if with_options or targets else tuple(s for s in subjects if "(" in s.name)
    subjects = [subject for subject in subjects if subject not in left_out]
    session = Session(subjects=subjects, cases=cases, setting=setting, **more)
    done = tuple(record for record in place.done if session.holds(record))
    names = tuple(subject.name for subject in left_out)
    return Running(session, place.path, done, names, place.claim)


def _saved(path: Path, device: str, dtypes: Sequence[str] | None) -> BenchCase:
    arguments = {"path": path.resolve(), "device": device, "dtype": dtypes[0] if dtypes else None}
    case: BenchCase = call(Task(str(path), "attnbench.benchmark.workloads:saved", arguments))
    return case


def _subjects(targets: Sequence[str] | None) -> list[Planned]:
    """The subjects asked for, the baseline, and the scoring functions of kernels.

    Of all that are installed, layers are left out: no case of a benchmark is one of theirs.
    """
    rows = ask("subject_rows", targets=targets or None)
    rows = [row for row in rows if targets or row["kind"] != "layer"]
    names = {row["subject"] for row in rows}
    kernels = [row for row in rows if row["kind"] == "kernel" and row["target"] == row["subject"]]
    needed = [BASELINE, *dict.fromkeys(scoring_of(row["subject"]) for row in kernels)]
    for name in reversed([name for name in needed if targets and name not in names]):
        with contextlib.suppress(UnknownNameError):  # without built-in plugins there is none
            rows = [*ask("subject_rows", targets=[name]), *rows]
    planned = [Planned(row["target"], row["subject"], row["kind"]) for row in rows]
    return list(dict.fromkeys(planned))


def _place(results: Path, run: str | None, *, resume: bool) -> Place:
    if run is not None and not re.fullmatch(r"\w[\w.-]*", run):
        raise UsageError(f"--run {run}: it names a file; use letters, digits, '_', '-' and '.'.")
    if not resume:
        run = run or store.new_run()
        path = store.run_path(results, run)
        if path.exists() or path.with_suffix(".partial").exists():
            raise UsageError(f"run {run!r} is there already: add --resume, or choose another name.")
        return Place(store.run_path(results, run), run)
    if run is None:
        files = (*results.glob("*.jsonl"), *results.glob("*.partial"))
        runs = sorted(files, key=lambda path: path.stat().st_mtime)
        if not runs:
            raise UsageError(f"there is no run to resume in {results}; leave --resume out.")
        run = runs[-1].stem
    path = store.run_path(results, run)
    if not path.exists() and not path.with_suffix(".partial").exists():
        raise UsageError(f"there is no run {run!r} in {results}; leave --resume out.")
    return Place(path, run, tuple(store.read(path)) if path.exists() else ())


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
× dot     time over that of scaled_dot, measured in turn in the same processes; ± is half the width
          of its 95 % interval, from processes
gain      of a kernel: how many times faster than its scoring function
time_ms   a low quantile of a call's times, the median over processes
peak_MiB  most memory during a call beyond inputs and parameters
error     largest error against float64 as a multiple of what is allowed: up to 1 is agreement
roof_%    the least time in which this machine could move inputs and results and do the matrix
          products, of the time it took
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


def ranked(records: Iterable[Record]) -> dict[str, list[dict[str, Any]]]:
    """Rows to print for each case: the ranked ones first, fastest first."""
    tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows(records):
        tables[row.record.case].append(_cells(row))
    return dict(tables)


def _cells(row: Row) -> dict[str, Any]:
    return {
        "subject": row.record.subject,
        "× dot": row.ratio,
        "±": percent(half_width(row.ratio_low, row.ratio_high)),
        "gain": row.gain,
        "time_ms": _scaled(row.time_s, 1e3),
        "peak_MiB": _scaled(row.peak_bytes, 2**-20),
        "error": row.error_ratio,
        "roof_%": _scaled(row.roofline_share, 100),
        "first_ms": _scaled(row.first_call_s, 1e3),
        "processes": row.processes,
        "status": row.status,
        "reason": row.reason,
    }


def percent(share: float | None) -> str:
    """A share in percent, as short as it can be told."""
    if share is None:
        return "-"
    return f"{share:.1%}" if share < 0.0995 else f"{min(share, 9.99):.0%}"


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def reasons(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Why rows are not ranked, one line for each reason."""
    found: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        if row["reason"]:
            found[f"{row['status']}: {row['reason'].splitlines()[0]}"].append(row["subject"])
    return [f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in found.items()]


def busy_line(records: Iterable[Record]) -> str:
    """How busy the machine was, in a sentence."""
    load = busy(records)
    if not load:
        return ""
    line = (
        f"Others kept {load['others_cores']:.1f} of {load['cores']:.0f} cores busy meanwhile, and "
        f"{load.get('disturbed_share', 0.0):.0%} of the slots were disturbed"
    )
    if load.get("stolen_share", 0.0) >= 0.005:
        line += f"; a hypervisor took {load['stolen_share']:.1%} of the time"
    return f"{line}. A busy machine widens the intervals."


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
