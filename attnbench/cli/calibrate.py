"""``attnbench calibrate``: the scatter of pairs of the same code on this machine."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench.cli import options as option
from attnbench.cli.exit_codes import INCONCLUSIVE, INTERRUPTED, OK
from attnbench.processes.machines import Machine, MachineLostError
from attnbench.processes.pool import Task

if TYPE_CHECKING:
    from attnbench.benchmark.comparing.duel import Row
    from attnbench.benchmark.workloads import Selection


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
    from attnbench.benchmark.workloads import Selection
    from attnbench.cli.printing.tables import print_json

    asked: dict[str, Any] = {
        "targets": targets,
        "selection": Selection(None if workload else set_name, workload or (), dtypes=dtype),
        "device": device,
        "threads": threads,
        "pairs": pairs,
    }
    lost: list[MachineLostError] = []
    if cluster is None:
        found = {"": calibrated(**asked)}
    else:
        found, lost = _on_machines(cluster, device, asked)
    if as_json:
        print_json(found[""] if cluster is None else {"machines": found})
    else:
        for name, one in found.items():
            _show(name, one)
        typer.echo(_LEGEND)
    for error in lost:
        typer.echo(f"attnbench: {error}", err=True)
    if lost:
        return MachineLostError.exit_code
    if any(one["interrupted"] for one in found.values()):
        return INTERRUPTED
    measured = all(any(row["pairs"] >= 2 for row in one["rows"]) for one in found.values())
    return OK if measured else INCONCLUSIVE


def calibrated(
    targets: Sequence[str] | None, selection: Selection, device: str, threads: int, pairs: int
) -> dict[str, Any]:
    """Calibrate on this machine; the result is plain data, as ``--json`` prints it.

    After Ctrl-C, it has the pairs so far.
    """
    from attnbench.benchmark.comparing.duel import Duel
    from attnbench.benchmark.machine.setting import here
    from attnbench.benchmark.records.record import BASELINE
    from attnbench.cli.duel_plan import alike
    from attnbench.cli.printing.tables import progress

    interrupted = False
    with alike(targets or [BASELINE], selection.cases((device,)), threads=threads) as (
        exchange,
        rows,
    ):
        duel = Duel(exchange, rows, looks={pairs: 0.02}, decide=False)
        try:
            with progress(pairs * len(rows), "calibrating") as advance:
                duel.step = lambda count: advance(count, f"pair {duel.pairs}")
                duel.run()
        except KeyboardInterrupt:
            interrupted = True
    return {
        "machine": dict(here().machine),
        "load": duel.load,
        "row_s": duel.row_s,
        "rows": [_row(row) for row in duel.rows],
        "unmeasured": [f"{r.subject}: {r.reason}" for r in duel.rows if r.reason and not r.values],
        "interrupted": interrupted,
    }


def _on_machines(
    cluster: str, device: str, asked: dict[str, Any]
) -> tuple[dict[str, dict[str, Any]], list[MachineLostError]]:
    """Calibrate on all machines of a cluster at once; returns results by machine, and the lost."""
    from attnbench.cli import machine_runs

    task = Task("calibrate", f"{__name__}:calibrated", asked, timeout_s=_WITHIN_S)
    found, lost = {}, []
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(_MOST_MACHINES))  # waits for threads last
        machines = stack.enter_context(machine_runs.machines_of(cluster, [device]))
        assert machines is not None
        calls = {one.name: pool.submit(Machine.call, one, task) for one in machines.all}
        for name, call in calls.items():
            try:
                found[name] = call.result()
            except MachineLostError as error:
                lost.append(error)
    return found, lost


def _show(title: str, one: dict[str, Any]) -> None:
    from attnbench.cli.printing.tables import print_table

    print_table(one["rows"], title=title or None)
    for reason in one["unmeasured"]:
        typer.echo(reason)
    load = one["load"]
    if load:
        typer.echo(
            f"{one['row_s']:.2f} s per row and pair; other processes kept "
            f"{load['others_cores']:.1f} of {load['cores']:.0f} cores busy."
        )
    typer.echo("")


_MOST_MACHINES = 256
_WITHIN_S = 24 * 3600.0

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
    return {
        "subject": row.subject,
        "case": row.case.workload or row.case.id,
        "pairs": len(values),
        "mean_%": _percent(statistics.fmean(values)) if values else None,
        "spread_%": _percent(spread),
        **{f"seen_{n}_%": _percent(_seen(spread, n, share)) for n, share in LOOKS.items()},
    }


def _seen(spread: float, pairs: int, share: float) -> float:
    from scipy import special

    limit = float(special.stdtrit(pairs - 1, 1 - share / 2))
    return (limit + 1.645) * spread / math.sqrt(pairs)


def _percent(log: float) -> float | None:
    return None if math.isnan(log) else 100 * math.expm1(log)
