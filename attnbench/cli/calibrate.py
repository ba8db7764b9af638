"""``attnbench calibrate``: the scatter of pairs of the same code on this machine."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench.cli.exit_codes import INCONCLUSIVE, INTERRUPTED, OK
from attnbench.cli.options import AsJson, Cluster, Targets
from attnbench.errors import UsageError
from attnbench.processes.machines import Machine, MachineLostError
from attnbench.processes.pool import Task

if TYPE_CHECKING:
    from attnbench.benchmark.comparing.duel import Row


def command(
    targets: Targets = None,
    set_name: Annotated[str, typer.Option("--set", help="Named set of cases.")] = "compare",
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", help="A real workload instead of a set; may be repeated."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option("--dtype", help="A dtype that replaces those of the set; may be repeated."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="A torch device.")] = "cpu",
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of torch.")] = 1,
    pairs: Annotated[int, typer.Option("--pairs", min=2, help="Pairs of the same code.")] = 15,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> int:
    """Measure the same code on both sides, to find out what 'attnbench compare' can detect here.

    The default subject is scaled_dot. Run it while the machine is as busy as it will be when you
    compare. On a cluster every machine measures, each for itself.
    """
    from attnbench.benchmark.comparing.duel import Duel
    from attnbench.benchmark.machine.setting import here
    from attnbench.benchmark.records.record import BASELINE
    from attnbench.benchmark.workloads import cases_of
    from attnbench.cli.duel_plan import alike
    from attnbench.cli.printing.tables import print_json, print_table, progress

    cases = cases_of(
        name=None if workload else set_name,
        workload_names=workload or (),
        devices=(device,),
        dtypes=dtype,
    )
    if cluster is not None:
        words = [*(targets or ()), "--device", device, "--threads", str(threads)]
        words += ["--pairs", str(pairs), *([] if workload else ["--set", set_name])]
        words += [word for name in workload or () for word in ("--workload", name)]
        words += [word for name in dtype or () for word in ("--dtype", name)]
        return _on_machines(cluster, device, words, as_json=as_json)
    interrupted = False
    with alike(targets or [BASELINE], cases, threads=threads) as (exchange, rows):
        duel = Duel(exchange, rows, looks={pairs: 0.02}, decide=False)
        try:
            with progress(pairs * len(rows), "calibrating") as advance:
                duel.step = lambda count: advance(count, f"pair {duel.pairs}")
                duel.run()
        except KeyboardInterrupt:
            interrupted = True
    shown = [_row(row) for row in duel.rows]
    if as_json:
        machine = dict(here().machine)
        print_json({"machine": machine, "load": duel.load, "row_s": duel.row_s, "rows": shown})
    else:
        print_table(shown)
        for row in duel.rows:
            if row.reason and not row.values:
                typer.echo(f"{row.subject}: {row.reason}")
        typer.echo(_LEGEND)
        _tell_load(duel.row_s, duel.load)
    if interrupted:
        return INTERRUPTED
    return OK if any(len(row.values) >= 2 for row in duel.rows) else INCONCLUSIVE


def _on_machines(cluster: str, device: str, words: Sequence[str], *, as_json: bool) -> int:
    """Calibrate on all machines of a cluster at once."""
    from attnbench.cli import machine_runs
    from attnbench.cli.printing.tables import print_json, print_table

    task = Task(
        "calibrate", f"{__name__}:as_plain_data", {"words": list(words)}, timeout_s=_WITHIN_S
    )
    found: dict[str, dict[str, Any]] = {}
    lost = []
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
    if as_json:
        print_json({"machines": found})
    else:
        for name, one in found.items():
            print_table(one["rows"], title=name)
            _tell_load(one["row_s"], one["load"])
            typer.echo("")
        typer.echo(_LEGEND)
    for one_lost in lost:
        typer.echo(f"attnbench: {one_lost}", err=True)
    if lost:
        return MachineLostError.exit_code
    told = all(any(row["pairs"] >= 2 for row in one["rows"]) for one in found.values())
    return OK if told else INCONCLUSIVE


def as_plain_data(words: Sequence[str]) -> Any:
    """What ``attnbench calibrate --json`` prints on the machine on which this is called.

    Raises:
        UsageError: it ended with an error.
    """
    command = [sys.executable, "-m", "attnbench", "calibrate", *words, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 -- ours
    if not done.stdout:
        *_, line = ["no output", *done.stderr.splitlines()]
        raise UsageError(line.removeprefix("attnbench: "))
    return json.loads(done.stdout)


def _tell_load(row_s: float, load: Any) -> None:
    if load:
        typer.echo(
            f"{row_s:.2f} s per row and pair; other processes kept "
            f"{load['others_cores']:.1f} of {load['cores']:.0f} cores busy."
        )


_MOST_MACHINES = 256
_WITHIN_S = 24 * 3600.0

_LEGEND = """\
spread_%   standard deviation of a pair's value, with the same code on both sides
seen_15_%  smallest slowdown that a single row detects in 95 of 100 comparisons after 15 pairs
           (seen_30_%, seen_60_%: after 30 and 60). If it is below the --margin of
           'attnbench compare' (3 % by default), that margin is the limit"""


def _row(row: Row) -> dict[str, Any]:
    import statistics

    from attnbench.benchmark.comparing.verdict_of_pairs import LOOKS

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
