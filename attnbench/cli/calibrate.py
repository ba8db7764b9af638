"""``attnbench calibrate``: the scatter of pairs of the same code on this machine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench.cli.exit_codes import INCONCLUSIVE, INTERRUPTED, OK
from attnbench.cli.options import AsJson, Targets

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
    as_json: AsJson = False,
) -> int:
    """Measure the same code on both sides, to find out what 'attnbench compare' can detect here.

    The default subject is scaled_dot. Run it while the machine is as busy as it will be when you
    compare.
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
        load = duel.load
        if load:
            typer.echo(
                f"{duel.row_s:.2f} s per row and pair; other processes kept "
                f"{load['others_cores']:.1f} of {load['cores']:.0f} cores busy."
            )
    if interrupted:
        return INTERRUPTED
    return OK if any(len(row.values) >= 2 for row in duel.rows) else INCONCLUSIVE


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
