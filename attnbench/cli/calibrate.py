"""``attnbench calibrate``: the scatter of pairs of the same code on this machine."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench.benchmark.machine.load import busy_cores
from attnbench.benchmark.machine.setting import here
from attnbench.benchmark.records.record import BASELINE
from attnbench.benchmark.timing.blocks import student_quantile
from attnbench.benchmark.workloads import Selection
from attnbench.cli import options as option
from attnbench.cli.exit_codes import INCONCLUSIVE, INTERRUPTED, OK
from attnbench.cli.printing.tables import print_json, print_table
from attnbench.processes.cluster_machines import Machine, MachineLostError
from attnbench.processes.pool import Task

if TYPE_CHECKING:
    from attnbench.benchmark.comparing.duel import Row


def command(
    targets: option.Targets = None,
    set_name: option.Set = "compare",
    workload: option.Workload = None,
    dtype: option.Dtypes = None,
    device: option.Device = "cpu",
    threads: option.Threads = 1,
    pairs: Annotated[int, typer.Option("--pairs", min=2, help="Pairs of the same code.")] = 15,
    cluster: option.Cluster = None,
    as_json: option.AsJson = False,
) -> int:
    """Measure the same code on both sides, to find out what 'attnbench compare' can detect here.

    The default subject is scaled_dot. Run it while the machine is as busy as it will be when you
    compare. On a cluster every machine measures, each for itself.
    """
    options: dict[str, Any] = {
        "targets": targets,
        "selection": Selection(None if workload else set_name, workload or (), dtypes=dtype),
        "device": device,
        "threads": threads,
        "pairs": pairs,
    }
    losses: list[MachineLostError] = []
    if cluster is None:
        results = {"": calibrate(**options)}
    else:
        results, losses = _on_machines(cluster, device, options)
    if as_json:
        print_json(results[""] if cluster is None else {"machines": results})
    else:
        for name, result in results.items():
            _show(name, result)
        typer.echo(_LEGEND)
    for error in losses:
        typer.echo(f"attnbench: {error}", err=True)
    if losses:
        return MachineLostError.exit_code
    if any(result["interrupted"] for result in results.values()):
        return INTERRUPTED
    measured = all(any(row["pairs"] >= 2 for row in result["rows"]) for result in results.values())
    return OK if measured else INCONCLUSIVE


def calibrate(
    targets: Sequence[str] | None, selection: Selection, device: str, threads: int, pairs: int
) -> dict[str, Any]:
    """Calibrate on this machine; the result is plain data, as ``--json`` prints it.

    After Ctrl-C, it holds the pairs measured so far.
    """
    from attnbench.cli.duel_plan import Request, duel

    request = Request(subjects=tuple(targets or [BASELINE]), same_code=True)
    cases = selection.cases((device,))
    with duel(request, cases, threads=threads, looks={pairs: 0.02}, decide=False) as plan:
        interrupted, found = plan.run("calibrating"), plan.duel
    return {
        "machine": dict(here().machine),
        "load": found.load,
        "row_s": found.row_s,
        "rows": [_row(row) for row in found.rows],
        "unmeasured": [f"{r.subject}: {r.reason}" for r in found.rows if r.reason and not r.values],
        "interrupted": interrupted,
    }


def _on_machines(
    cluster: str, device: str, options: dict[str, Any]
) -> tuple[dict[str, dict[str, Any]], list[MachineLostError]]:
    """Calibrate on all machines of a cluster at once; returns results and losses of machines."""
    from attnbench.cli import machine_runs

    task = Task("calibrate", f"{__name__}:calibrate", options, timeout_s=_TIMEOUT_S)
    results, losses = {}, []
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(_MOST_MACHINES))  # waits for threads last
        machines = stack.enter_context(machine_runs.machines_of(cluster, [device]))
        assert machines is not None
        calls = {machine.name: pool.submit(Machine.call, machine, task) for machine in machines.all}
        for name, call in calls.items():
            try:
                results[name] = call.result()
            except MachineLostError as error:
                losses.append(error)
    return results, losses


def _show(title: str, result: dict[str, Any]) -> None:
    print_table(result["rows"], title=title or None)
    for reason in result["unmeasured"]:
        typer.echo(reason)
    load = result["load"]
    if load:
        typer.echo(
            f"{result['row_s']:.2f} s per row and pair; other processes kept {busy_cores(load)}."
        )
    typer.echo("")


_MOST_MACHINES = 256
_TIMEOUT_S = 24 * 3600.0

_LEGEND = """\
spread_%   standard deviation of a pair's value, with the same code on both sides
seen_15_%  smallest slowdown that a single row detects in 95 of 100 comparisons after 15 pairs
           (seen_30_%, seen_60_%: after 30 and 60). If it is below the --margin of
           'attnbench compare' (3 % by default), that margin is the limit"""


def _row(row: Row) -> dict[str, Any]:
    import statistics

    from attnbench.benchmark.comparing.verdict import LOOKS

    values = list(row.values.values())
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    errors = {n: (student_quantile(n - 1, tail / 2) + 1.645) / n**0.5 for n, tail in LOOKS.items()}
    return {
        "subject": row.subject,
        "case": row.case.workload or row.case.id,
        "pairs": len(values),
        "mean_%": _percent(statistics.fmean(values)) if values else None,
        "spread_%": _percent(spread),
        **{f"seen_{n}_%": _percent(error * spread) for n, error in errors.items()},
    }


def _percent(log: float) -> float | None:
    return None if math.isnan(log) else 100 * math.expm1(log)
