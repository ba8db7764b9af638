"""Runs on this machine or on the machines of a cluster, each recorded in its own file."""

from __future__ import annotations

import contextlib
import itertools
import queue
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attnbench.benchmark.measuring import unfinished
from attnbench.benchmark.measuring.session import StoredMeasurement
from attnbench.benchmark.records import store
from attnbench.benchmark.records.record import Record
from attnbench.benchmark.workloads import Selection
from attnbench.cli import recorded_run
from attnbench.cli.plugin_loading import with_plugins
from attnbench.cli.printing.tables import progress
from attnbench.cli.recorded_run import Place, Running
from attnbench.errors import UsageError
from attnbench.processes.cluster import ClusterWorkers
from attnbench.processes.machines import MEASURING, Machine, MachineLostError, Machines


@contextlib.contextmanager
def machines_of(
    cluster: str | None, devices: Sequence[str] | None, *preload: str
) -> Iterator[Machines | None]:
    """Connect to the machines of a cluster; ``None`` without one.

    Args:
        cluster: address or kind of the cluster.
        devices: devices to measure on; an accelerator needs workers with the resource ``GPU``.
        preload: modules to import in the workers' children, besides those for measuring.

    Raises:
        UsageError: see :class:`ClusterWorkers`.
    """
    if cluster is None:
        yield None
        return
    accelerators = [name for name in devices or () if not name.startswith("cpu")]
    wanted = {MEASURING: 1, **({"GPU": 1} if accelerators else {})}
    modules = with_plugins(*recorded_run.PRELOAD, *preload)
    only = len(accelerators) == len(devices or ("cpu",))
    with (
        ClusterWorkers(cluster, preload=modules, resources=wanted) as workers,
        Machines(workers, accelerator=only) as machines,
    ):
        yield machines


def start(
    machines: Machines | None,
    results: Path,
    run: str | None = None,
    *,
    resume: bool = False,
    preload: Sequence[str] = (),
) -> list[tuple[Machine | None, Place]]:
    """Prepare the run of each machine; see :func:`recorded_run.start`.

    In a cluster, the id of a run consists of the names of the run and the machine. If a run is
    resumed, a machine that is new in the cluster starts its own.

    Raises:
        AttnbenchError: as of :func:`recorded_run.start`.
    """
    if machines is None:
        return [(None, recorded_run.start(results, run, resume=resume, preload=preload))]
    names = {machine.name: re.sub(r"[^\w.-]", "-", machine.name) for machine in machines.all}
    if resume:
        run = run or _last(results, names.values())
        there = [name for name in names.values() if _exists(results, f"{run}-{name}")]
        if not there:
            raise UsageError(
                f"there is no run {run!r} of {', '.join(names)} in {results}; omit --resume."
            )
    run = run or store.new_run()
    found: list[tuple[Machine | None, Place]] = []
    for machine in machines.all:
        own = f"{run}-{names[machine.name]}"
        goes_on = resume and _exists(results, own)
        place = recorded_run.start(results, own, resume=goes_on, preload=preload)
        found.append((machine, place))
    return found


def _exists(results: Path, run: str) -> bool:
    path = store.run_path(results, run)
    return path.exists() or unfinished.exists(path)


def _last(results: Path, machines: Sequence[str] | Any) -> str | None:
    """The newest run that one of the machines recorded."""
    files = sorted(
        (*results.glob("*.jsonl"), *unfinished.files(results)), key=lambda p: -p.stat().st_mtime
    )
    ends = [f"-{name}" for name in machines]
    return next(
        (p.stem.removesuffix(end) for p in files for end in ends if p.stem.endswith(end)), None
    )


def plan(
    places: Sequence[tuple[Machine | None, Place]], selection: Selection, **asked: Any
) -> list[Running]:
    """The session of each machine; see :func:`recorded_run.plan`."""
    return [recorded_run.plan(p, selection, machine=machine, **asked) for machine, p in places]


def measure(runs: Sequence[Running], into: list[Record]) -> list[MachineLostError]:
    """Measure and record on all machines at once; returns the errors of machines that were lost.

    Takes are stored next to the records until a session is complete, so that an interrupted run can
    continue where it stopped.
    """
    found = {(record.run, *record.key): record for run in runs for record in run.place.done}
    into[:] = found.values()
    lost = []
    with progress(sum(r.session.processes * len(r.session) for r in runs), "measuring") as advance:
        advance(sum(len(unfinished.read(run.place.path)) for run in runs), "")
        for run, event in _together(runs):
            if isinstance(event, StoredMeasurement):
                unfinished.append(run.place.path, event)
                where = f" on {run.machine}" if run.machine else ""
                advance(1, f"{event.subject}: {event.case}{where}")
            elif isinstance(event, Record):
                store.append(run.place.path, event)
                found[event.run, *event.key] = event
                into[:] = found.values()
            elif event is None:
                run.end()
            else:
                lost.append(event)
    return lost


def _together(
    runs: Sequence[Running],
) -> Iterator[tuple[Running, StoredMeasurement | Record | MachineLostError | None]]:
    """Yield the events of all runs as they come; each run ends with ``None`` or a lost machine."""
    if all(run.session.machine is None for run in runs):
        yield from ((run, event) for run in runs for event in itertools.chain(run.events(), [None]))
        return
    come: queue.SimpleQueue[tuple[Running, Any]] = queue.SimpleQueue()

    def follow(run: Running) -> None:
        try:
            for event in run.events():
                come.put((run, event))
            come.put((run, None))
        except BaseException as error:
            come.put((run, error))

    for run in runs:
        threading.Thread(target=follow, args=(run,), daemon=True).start()
    left = len(runs)
    while left:
        run, event = come.get()
        if isinstance(event, BaseException) and not isinstance(event, MachineLostError):
            raise event
        left -= not isinstance(event, StoredMeasurement | Record)
        yield run, event
