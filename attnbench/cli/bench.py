"""``attnbench bench``: time, memory and error of subjects at named cases, recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.cli.exit_codes import INTERRUPTED, exit_code
from attnbench.cli.options import AsJson, Convention, Strict, Style, Targets, Timing, styled_targets

_RESULTS = Path("results/attnbench")


def command(
    targets: Targets = None,
    style: Style = None,
    convention: Convention = None,
    set_name: Annotated[
        str | None,
        typer.Option(
            "--set",
            help="Named set of cases: smoke, default or full. It is default unless --workload or "
            "--inputs is given.",
            show_default=False,
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            "--workload", help="Sizes of a real model, such as bert_base; may be repeated."
        ),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", help="A safetensors file with your own query, key and value."),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            help="A torch device; may be repeated. The CPU and any accelerator by default.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option("--dtype", help="A dtype instead of those of the set; may be repeated."),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of torch.")] = 1,
    cache: Annotated[
        str, typer.Option("--cache", help="warm, or cold: flushed before each call.")
    ] = "warm",
    timing: Timing = "call",
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            min=1,
            help="Processes that take every subject and case; a verdict of 'attnbench compare' on "
            "recorded runs needs at least 5 a side.",
        ),
    ] = 3,
    budget: Annotated[
        float,
        typer.Option(
            "--budget",
            min=0.0,
            help="Seconds within which further processes are started for narrower intervals.",
        ),
    ] = 0.0,
    timeout: Annotated[
        float,
        typer.Option("--timeout", min=0.1, help="Seconds that one row may take in a process."),
    ] = 120.0,
    retries: Annotated[
        int | None,
        typer.Option("--retries", min=0, hidden=True, help="Without effect: nothing is void."),
    ] = None,
    results: Annotated[Path, typer.Option("--results", help="Folder of the records.")] = _RESULTS,
    run: Annotated[
        str | None, typer.Option("--run", help="Name of the run and of its file.")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue --run, or the last run in the folder."),
    ] = False,
    as_json: AsJson = False,
    strict: Strict = False,
) -> int:
    """Measure time, memory and error of subjects, each in turn with a baseline.

    It is scaled_dot, and of layers causal_attention; these are measured at prefill and decode.

    Each of several processes measures all rows in random order; the intervals come from these
    processes.
    Every row is recorded as it comes, so that a run that was ended can be resumed.
    """
    from attnbench.benchmark.measuring.contract import Contract
    from attnbench.benchmark.records.record import Record
    from attnbench.cli import recorded_run
    from attnbench.cli.plugin_loading import check_options, load_plugins
    from attnbench.cli.printing import record_tables
    from attnbench.cli.printing.tables import print_json

    if retries is not None:
        typer.echo(
            "warning: --retries has no effect and will be removed in 0.3: a busy machine makes no "
            "measurement void.",
            err=True,
        )
    targets = styled_targets(targets, style, convention)
    contract = Contract(cache=cache, timing=timing, threads=threads)
    if set_name is None and not workload and inputs is None:
        set_name = "default"
    chosen: dict[str, Any] = {
        "set_name": set_name,
        "workloads": workload or (),
        "inputs": inputs,
        "dtypes": dtype,
    }
    place = recorded_run.start(**chosen, results=results, run=run, resume=resume)
    plugins = load_plugins(strict=strict)
    check_options(targets or ())
    running = recorded_run.plan(
        place,
        **chosen,
        targets=targets,
        devices=device,
        contract=contract,
        processes=processes,
        timeout_s=timeout,
        budget_s=budget,
    )
    records: list[Record] = []
    interrupted = False
    try:
        running.measure(records)
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        print_json({"file": str(running.place.path), "records": record_tables.as_rows(records)})
    else:
        _show(records, running.place.path, interrupted=interrupted)
    if interrupted:
        return INTERRUPTED
    failed = any(row["status"] == "failed" for row in plugins)
    return exit_code(record_tables.statuses_of(records), plugin_failed=failed)


def _show(records: list, path: Path, *, interrupted: bool) -> None:  # type: ignore[type-arg]
    from attnbench.cli.printing import record_tables
    from attnbench.cli.printing.tables import print_table

    titles = {record.case: record_tables.titled(record) for record in records}
    tables = record_tables.ranked(records)
    for key, rows in tables.items():
        print_table(rows, hide=("reason", "processes"), title=titles[key])
        for line in record_tables.reasons(rows):
            typer.echo(f"  {line}")
        typer.echo("")
    typer.echo(record_tables.legend(tables.values()))
    typer.echo(record_tables.busy_line(records))
    word = "interrupted after" if interrupted else "recorded"
    count = "1 measurement" if len(records) == 1 else f"{len(records)} measurements"
    typer.echo(f"\n{word} {count} in {path}")
