"""``attnbench bench``: measure and record time, memory and error of subjects at named cases."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from attnbench.benchmark.timing.contract import Contract
from attnbench.benchmark.workloads import Selection
from attnbench.cli import options as option
from attnbench.cli.measured_runs import PRELOAD, planned
from attnbench.cli.plugin_loading import load_plugins, try_options
from attnbench.report import record_tables
from attnbench.report.printing import print_json, print_line, print_parts


def command(
    targets: option.Targets = None,
    style: option.Style = None,
    call: option.Call = None,
    convention: option.Convention = None,
    set_name: option.Set = None,
    length: Annotated[
        list[int] | None,
        typer.Option(
            "--length",
            min=1,
            help="A length S: attention is measured at L = S, and a layer at prefill and decode of "
            "one sequence; may be repeated. Like --workload and --inputs, it replaces the default "
            "set.",
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
    timing: Annotated[
        str,
        typer.Option(
            "--timing",
            help="call: time a call as a user makes it. device: on a CUDA device, time a replayed "
            "graph, without the overhead of Python.",
        ),
    ] = "call",
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            help="Subject with which those of its kind are paired, instead of scaled_dot or, for "
            "layers, causal_attention.",
            show_default=False,
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option("--processes", min=1, help="Processes that measure every subject and case."),
    ] = 3,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Most seconds for a row in one process.")
    ] = 120.0,
    results: option.Results = option.RESULTS,
    run: Annotated[
        str | None,
        typer.Option(
            "--run", help="Name of the run and of its file; one that exists is gone on with."
        ),
    ] = None,
    as_json: option.AsJson = False,
    strict: option.Strict = False,
) -> int:
    """Measure time, memory and error of subjects, each in turn with a baseline.

    The baseline is scaled_dot or, for layers, causal_attention. Several processes measure all rows,
    each in random order; the intervals are computed over the processes. Results are saved as they
    come.
    """
    addresses = option.parse_targets(targets, style, convention, call)
    contract = Contract(cache=cache, timing=timing, threads=threads)
    if not (set_name or length or workload or inputs):
        set_name = "default"
    selection = Selection(set_name, workload or (), length or (), inputs, dtype)
    plugins = load_plugins(strict=strict, preload=PRELOAD)
    try_options(addresses or ())
    what: dict[str, Any] = {"targets": addresses, "selection": selection, "devices": device}
    how: dict[str, Any] = {"baseline": baseline, "contract": contract, "processes": processes}
    with planned(results, run, **what, **how, timeout_s=timeout) as measured:
        records = measured.measure()
    if as_json:
        rows = [asdict(record) for record in records]
        print_json({"files": [str(measured.path)], "records": rows})
    else:
        print_parts(record_tables.parts(records))
        verb = "interrupted after" if measured.interrupted else "recorded"
        print_line(f"\n{verb} {len(records)} measurements in {measured.path}")
    if measured.interrupted:
        return option.INTERRUPTED
    return option.exit_code(record_tables.statuses_of(records), plugins)
