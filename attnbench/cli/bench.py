"""``attnbench bench``: measure and record time, memory and error of subjects at named cases."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from attnbench.benchmark.contract import Contract
from attnbench.benchmark.records import Record
from attnbench.benchmark.workloads import Selection
from attnbench.cli import machine_runs
from attnbench.cli import options as option
from attnbench.cli.plugin_loading import load_plugins, try_options
from attnbench.cli.printing.tables import print_json, print_parts
from attnbench.cli.recorded_run import RunSession
from attnbench.report import record_tables


def command(
    targets: option.Targets = None,
    style: option.Style = None,
    call: option.Call = None,
    convention: option.Convention = None,
    set_name: option.BenchSet = None,
    length: option.Lengths = None,
    workload: option.Workload = None,
    inputs: option.Inputs = None,
    device: option.Devices = None,
    dtype: option.Dtypes = None,
    threads: option.Threads = 1,
    cache: option.Cache = "warm",
    timing: option.Timing = "call",
    baseline: option.Baseline = None,
    processes: option.Processes = 3,
    budget: option.Budget = 0.0,
    timeout: option.RowTimeout = 120.0,
    results: option.Results = option.RESULTS,
    run: option.RunName = None,
    resume: option.Resume = False,
    cluster: option.Cluster = None,
    as_json: option.AsJson = False,
    strict: option.Strict = False,
) -> int:
    """Measure time, memory and error of subjects, each in turn with a baseline.

    The baseline is scaled_dot or, for layers, causal_attention. Several processes measure all rows,
    each in random order; the intervals are computed over the processes. Results are saved as they
    come. On a cluster every machine measures all rows, and records them in its own file.
    """
    addresses = option.parse_targets(targets, style, convention, call)
    contract = Contract(cache=cache, timing=timing, threads=threads)
    if not (set_name or length or workload or inputs):
        set_name = "default"
    selection = Selection(set_name, workload or (), length or (), inputs, dtype)
    selection.check()
    records: list[Record] = []
    limits = {"processes": processes, "timeout_s": timeout, "budget_s": budget}
    how = {"devices": device, "baseline": baseline, "contract": contract, **limits}
    with machine_runs.machines_of(cluster, device) as machines:
        places = machine_runs.start(machines, results, run, resume=resume)
        plugins = load_plugins(strict=strict)
        try_options(addresses or ())
        runs = machine_runs.plan(places, selection, targets=addresses, **how)
        ended = machine_runs.measured(runs, records)
    _show(records, runs, ended, as_json=as_json)
    return ended.exit_code(record_tables.statuses_of(records), plugins)


def _show(
    records: list[Record],
    runs: Sequence[RunSession],
    ended: machine_runs.Ended,
    *,
    as_json: bool,
) -> None:
    paths = [str(run.place.path) for run in runs]
    if as_json:
        files = {"files": paths} if runs[0].machine else {"file": paths[0]}
        print_json({**files, "records": record_tables.as_rows(records)})
    else:
        print_parts(record_tables.parts(records))
        verb = "interrupted after" if ended.interrupted else "recorded"
        count = "1 measurement" if len(records) == 1 else f"{len(records)} measurements"
        typer.echo(f"\n{verb} {count} in {', '.join(paths)}")
    ended.show_losses()
