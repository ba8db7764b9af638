"""``attnbench run``: find the subjects, check and measure them, and print one table."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from attnbench.benchmark.contract import Contract
from attnbench.benchmark.records.record import Record
from attnbench.benchmark.workloads import Selection
from attnbench.checking import parallel
from attnbench.checking.check_report import CheckReport
from attnbench.checking.outcomes import KEEPS_CONTRACT, Outcome
from attnbench.checking.work import key_of, works_of
from attnbench.cli import options as option
from attnbench.cli.exit_codes import INTERRUPTED, exit_code
from attnbench.cli.plugin_loading import PLAN, ask, load_plugins, try_options
from attnbench.cli.printing.first_screen import show
from attnbench.cli.printing.first_screen_content import content
from attnbench.cli.printing.tables import print_json, progress
from attnbench.processes.cluster import ClusterWorkers
from attnbench.processes.cluster_machines import MachineLostError
from attnbench.processes.pool import MEMORY_GIB
from attnbench.report import record_tables

_INVARIANT_S = 60.0
_CHECKS_S = 60.0
_MEASURING_S = 45.0
_ROUND_SIZE = 8


def command(
    targets: option.Targets = None,
    style: option.Style = None,
    call: option.Call = None,
    convention: option.Convention = None,
    inputs: option.Inputs = None,
    device: option.Devices = None,
    threads: option.Threads = 1,
    timing: option.Timing = "call",
    baseline: option.Baseline = None,
    check_seconds: Annotated[
        float,
        typer.Option(
            "--check-seconds",
            min=0.0,
            help="Seconds for the checks; those for which there is no time are shown as not run.",
        ),
    ] = _CHECKS_S,
    seconds: Annotated[
        float,
        typer.Option(
            "--seconds",
            min=0.0,
            help="Seconds for the measurements; each row is measured in at least three processes.",
        ),
    ] = _MEASURING_S,
    results: option.Results = option.RESULTS,
    cluster: option.Cluster = None,
    as_json: option.AsJson = False,
    strict: option.Strict = False,
) -> int:
    """Check every subject, measure it on a small grid, and show everything on one screen.

    This runs the checks of 'attnbench check --profile quick' and the measurements of 'attnbench
    bench --set run'; these commands show more. Other work on the machine widens the intervals. On a
    cluster the checks are split over all workers, and every machine measures all rows.
    """
    from attnbench.cli import machine_runs

    addresses = option.parse_targets(targets, style, convention, call)
    selection = Selection("run" if inputs is None else None, inputs=inputs)
    selection.check()
    options = {"profile": "quick", "device": "cpu", "dtypes": None}
    outcomes: list[Outcome] = []
    records: list[Record] = []
    losses: list[MachineLostError] = []
    interrupted = False
    with machine_runs.machines_of(cluster, device, *parallel.PRELOAD) as machines:
        places = machine_runs.start(machines, results, preload=parallel.PRELOAD)
        plugins = load_plugins(strict=strict)
        try_options(addresses or ())
        runs = machine_runs.plan(
            places,
            selection,
            targets=addresses,
            devices=device,
            with_options=False,
            baseline=baseline,
            contract=Contract(threads=threads, timing=timing),
            budget_s=seconds,
        )
        plan = ask(PLAN, targets=addresses, invariants=None, **options)
        workers = None if machines is None else machines.cluster
        try:
            _check(plan, options, check_seconds, outcomes, workers)
            losses = machine_runs.measure(runs, records)
        except KeyboardInterrupt:
            interrupted = True
    notes = ("interrupted",) if interrupted else ()
    report = CheckReport(tuple(outcomes), "quick", None, notes)
    paths = [machine_run.place.path for machine_run in runs]
    checks = paths[0].with_suffix(".checks.json")
    checks.write_text(report.to_json() + "\n", encoding="utf-8")
    screen = content(
        records,
        outcomes,
        plan["of_subject"],
        runs[0].left_out,
        own_inputs=inputs is not None,
        addresses={name: str(target) for target, name in plan["subjects"]},
    )
    if as_json:
        files: dict[str, Any] = {"checks_file": str(checks), "file": str(paths[0])}
        if cluster is not None:
            files = {"checks_file": str(checks), "files": [*map(str, paths)]}
        lists = {
            "outcomes": [vars(outcome) for outcome in outcomes],
            "records": record_tables.as_rows(records),
        }
        print_json({**files, **screen, **lists})
    else:
        show(screen, records, [subject.name for subject in runs[0].session.subjects])
        typer.echo(f"Recorded in {', '.join(map(str, paths))}, and the checks in {checks.name}.")
    for error in losses:
        typer.echo(f"attnbench: {error}", err=True)
    if interrupted:
        return INTERRUPTED
    statuses = [outcome.status for outcome in outcomes] + record_tables.statuses_of(records)
    return exit_code([*statuses, *["crashed"] * len(losses)], plugins)


def _check(
    plan: Mapping[str, Any],
    options: Mapping[str, Any],
    seconds: float,
    outcomes: list[Outcome],
    cluster: ClusterWorkers | None,
) -> None:
    """Run checks until the time is up; outcomes are appended to a list as they come.

    All subjects are checked against a few invariants before any is checked against the next ones,
    so that subjects share the time equally.
    """
    names = tuple(dict(plan["invariants"]))
    contract = names[:1] if names[:1] == (KEEPS_CONTRACT,) else ()  # if it fails, no other is run
    works = [
        work
        for start in range(0, len(names), _ROUND_SIZE)
        for work in works_of(
            plan["subjects"],
            tuple(dict.fromkeys((*contract, *names[start : start + _ROUND_SIZE]))),
            plan["of_subject"],
        )
        if work.invariants and (start == 0 or work.invariants != contract)
    ]
    deadline = time.monotonic() + seconds
    checks = parallel.run_checks(
        works,
        {**options, "seed": None},
        jobs=0,
        timeout_s=_INVARIANT_S,
        memory_gib=MEMORY_GIB,
        cluster=cluster,
    )
    with progress(sum(len(work.invariants) for work in works), "checking") as advance:
        for outcome in checks:
            outcomes[:] = [earlier for earlier in outcomes if key_of(earlier) != key_of(outcome)]
            outcomes.append(outcome)
            advance(1, f"{outcome.subject}: {outcome.invariant}")
            if time.monotonic() > deadline:
                checks.close()
                break
