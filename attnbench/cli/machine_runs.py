"""Runs on this machine or on the machines of a cluster, each recorded in its own file."""

from __future__ import annotations

import contextlib
import itertools
import queue
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnbench.benchmark import records as store
from attnbench.benchmark.records import Record
from attnbench.benchmark.workloads import Selection
from attnbench.cli import recorded_run
from attnbench.cli.exit_codes import INTERRUPTED, exit_code
from attnbench.cli.plugin_loading import with_plugins
from attnbench.cli.printing.tables import progress
from attnbench.cli.recorded_run import RunPlace, RunSession
from attnbench.errors import UsageError
from attnbench.processes.cluster import (
    MEASURING,
    ClusterWorkers,
    Machine,
    MachineLostError,
    Machines,
)


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
    resources = {MEASURING: 1, **({"GPU": 1} if accelerators else {})}
    modules = with_plugins(*recorded_run.PRELOAD, *preload)
    all_accelerators = len(accelerators) == len(devices or ("cpu",))
    with ClusterWorkers(cluster, preload=modules, resources=resources) as workers:
        yield Machines(workers, accelerator=all_accelerators)


def start(
    machines: Machines | None,
    results: Path,
    run: str | None = None,
    *,
    resume: bool = False,
    preload: Sequence[str] = (),
) -> list[tuple[Machine | None, RunPlace]]:
    """Prepare the run of each machine; see :func:`recorded_run.start`.

    In a cluster, the id of a run consists of the names of the run and the machine. If a run is
    resumed, a machine that is new in the cluster starts its own.

    Raises:
        AttnbenchError: as of :func:`recorded_run.start`.
    """
    if machines is None:
        return [(None, recorded_run.start(results, run, resume=resume, preload=preload))]
    names = {machine.name: re.sub(r"[^\w.-]", "-", machine.name) for machine in machines.all}
    known = store.runs_in(results) if resume else []
    if resume:
        pairs = itertools.product(known, names.values())
        own = [stem.removesuffix(f"-{name}") for stem, name in pairs if stem.endswith(f"-{name}")]
        run = run or next(iter(own), None)
        if run not in own:
            raise UsageError(
                f"there is no run {run!r} of {', '.join(names)} in {results}; omit --resume."
            )
    run = run or store.new_run()
    places: list[tuple[Machine | None, RunPlace]] = []
    for machine in machines.all:
        run_id = f"{run}-{names[machine.name]}"
        place = recorded_run.start(results, run_id, resume=run_id in known, preload=preload)
        places.append((machine, place))
    return places


def plan(
    places: Sequence[tuple[Machine | None, RunPlace]], selection: Selection, **options: Any
) -> list[RunSession]:
    """The session of each machine; see :func:`recorded_run.plan`."""
    return [recorded_run.plan(p, selection, machine=machine, **options) for machine, p in places]


@dataclass(frozen=True)
class Ended:
    """How the measuring ended: by Ctrl-C, or without some machines."""

    interrupted: bool = False
    losses: tuple[MachineLostError, ...] = ()

    def show_losses(self) -> None:
        """Say on standard error which machines were lost."""
        for error in self.losses:
            print(f"attnbench: {error}", file=sys.stderr)

    def exit_code(self, statuses: Iterable[str], plugins: Iterable[Mapping[str, Any]]) -> int:
        """The exit code of the command."""
        code = exit_code([*statuses, *["crashed"] * len(self.losses)], plugins)
        return INTERRUPTED if self.interrupted else code


def measured(runs: Sequence[RunSession], records: list[Record]) -> Ended:
    """Measure and record, until the end or Ctrl-C; see :func:`measure`."""
    try:
        return Ended(losses=tuple(measure(runs, records)))
    except KeyboardInterrupt:
        return Ended(interrupted=True)


def measure(runs: Sequence[RunSession], records: list[Record]) -> list[MachineLostError]:
    """Measure and record on all machines at once; returns the errors of machines that were lost.

    Each record is of one process, and appended to the run's file as it comes, so that an
    interrupted run can continue where it stopped. ``records`` gets what the processes say together,
    also after Ctrl-C.
    """
    lines = [record for run in runs for record in run.place.done]
    losses = []
    try:
        with progress(sum(r.session.processes * len(r.session) for r in runs), "measuring") as step:
            step(len(lines), "")
            for run, event in _merged_events(runs):
                if isinstance(event, Record):
                    store.append(run.place.path, event)
                    lines.append(event)
                    where = f" on {run.machine}" if run.machine else ""
                    step(1, f"{event.subject}: {event.case}{where}")
                elif event is None:
                    run.end()
                else:
                    losses.append(event)
    finally:
        from attnbench.benchmark.frames import summaries

        records[:] = summaries(lines)
    return losses


def _merged_events(
    runs: Sequence[RunSession],
) -> Iterator[tuple[RunSession, Record | MachineLostError | None]]:
    """Yield the events of all runs as they come; each run ends with ``None`` or a lost machine."""
    if all(run.session.machine is None for run in runs):
        yield from (
            (run, event) for run in runs for event in itertools.chain(run.records(), [None])
        )
        return
    events: queue.SimpleQueue[tuple[RunSession, Any]] = queue.SimpleQueue()

    def follow(run: RunSession) -> None:
        try:
            for event in run.records():
                events.put((run, event))
            events.put((run, None))
        except BaseException as error:
            events.put((run, error))

    for run in runs:
        threading.Thread(target=follow, args=(run,), daemon=True).start()
    unfinished_runs = len(runs)
    while unfinished_runs:
        run, event = events.get()
        if isinstance(event, BaseException) and not isinstance(event, MachineLostError):
            raise event
        unfinished_runs -= not isinstance(event, Record)
        yield run, event
