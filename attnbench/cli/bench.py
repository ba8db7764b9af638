"""``attnbench bench``: measure and record time, memory and error of subjects at named cases."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnbench.benchmark.contract import Contract
from attnbench.benchmark.records import Record
from attnbench.benchmark.workloads import Selection
from attnbench.cli import options as option
from attnbench.cli.exit_codes import INTERRUPTED, exit_code
from attnbench.cli.plugin_loading import load_plugins, try_options
from attnbench.cli.printing.tables import print_json, print_parts
from attnbench.processes.cluster_machines import MachineLostError
from attnbench.report import record_tables


def command(
    targets: option.Targets = None,
    style: option.Style = None,
    call: option.Call = None,
    convention: option.Convention = None,
    set_name: Annotated[
        str | None,
        typer.Option(
            "--set",
            help="Named set of cases: smoke, default or full. Without this option it is default, "
            "or none if --length, --workload or --inputs is given.",
            show_default=False,
        ),
    ] = None,
    length: Annotated[
        list[int] | None,
        typer.Option(
            "--length",
            min=1,
            help="A length S: attention is measured at L = S, and a layer at prefill and decode "
            "of one sequence; may be repeated.",
        ),
    ] = None,
    workload: option.Workload = None,
    inputs: option.Inputs = None,
    device: option.Devices = None,
    dtype: option.Dtypes = None,
    threads: option.Threads = 1,
    cache: Annotated[
        str, typer.Option("--cache", help="warm, or cold: flushed before each call.")
    ] = "warm",
    timing: option.Timing = "call",
    baseline: option.Baseline = None,
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            min=1,
            help="Processes that measure every subject and case. To compare recorded runs, "
            "'attnbench compare' needs at least 5 in each.",
        ),
    ] = 3,
    budget: Annotated[
        float,
        typer.Option(
            "--budget",
            min=0.0,
            help="Seconds during which further processes may start, for narrower intervals.",
        ),
    ] = 0.0,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.1, help="Most seconds for a row in one process."),
    ] = 120.0,
    results: option.Results = option.RESULTS,
    run: Annotated[
        str | None, typer.Option("--run", help="Name of the run and of its file.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue --run, or the last run in the folder."),
    ] = False,
    cluster: option.Cluster = None,
    as_json: option.AsJson = False,
    strict: option.Strict = False,
) -> int:
    """Measure time, memory and error of subjects, each in turn with a baseline.

    The baseline is scaled_dot; for layers, measured at prefill and decode, it is causal_attention;
    --baseline names another.

    Several processes measure all rows, each in random order; the intervals are computed over the
    processes.
    Results are saved as they come, so that an interrupted run can be resumed. On a cluster every
    machine measures all rows, one at a time, and records them in its own file.
    """
    from attnbench.cli import machine_runs

    addresses = option.parse_targets(targets, style, convention, call)
    contract = Contract(cache=cache, timing=timing, threads=threads)
    if set_name is None and not length and not workload and inputs is None:
        set_name = "default"
    selection = Selection(set_name, workload or (), length or (), inputs, dtype)
    selection.check()
    records: list[Record] = []
    losses: list[MachineLostError] = []
    interrupted = False
    with machine_runs.machines_of(cluster, device) as machines:
        places = machine_runs.start(machines, results, run, resume=resume)
        plugins = load_plugins(strict=strict)
        try_options(addresses or ())
        runs = machine_runs.plan(
            places,
            selection,
            targets=addresses,
            devices=device,
            baseline=baseline,
            contract=contract,
            processes=processes,
            timeout_s=timeout,
            budget_s=budget,
        )
        try:
            losses = machine_runs.measure(runs, records)
        except KeyboardInterrupt:
            interrupted = True
    paths = [machine_run.place.path for machine_run in runs]
    if as_json:
        files = {"file": str(paths[0])} if cluster is None else {"files": [*map(str, paths)]}
        print_json({**files, "records": record_tables.as_rows(records)})
    else:
        _show(records, paths, interrupted=interrupted)
    for error in losses:
        typer.echo(f"attnbench: {error}", err=True)
    if interrupted:
        return INTERRUPTED
    lost = ["crashed"] * len(losses)
    return exit_code([*record_tables.statuses_of(records), *lost], plugins)


def _show(records: list[Record], paths: list[Path], *, interrupted: bool) -> None:
    print_parts(record_tables.parts(records))
    verb = "interrupted after" if interrupted else "recorded"
    count = "1 measurement" if len(records) == 1 else f"{len(records)} measurements"
    typer.echo(f"\n{verb} {count} in {', '.join(map(str, paths))}")
