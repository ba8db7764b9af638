"""``attnbench compare``: whether B is faster or slower than A, with simultaneous intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench.cli import options as option
from attnbench.cli.exit_codes import INCONCLUSIVE, INTERRUPTED, exit_code
from attnbench.cli.printing.tables import print_json, print_table
from attnbench.errors import UsageError

if TYPE_CHECKING:
    from attnbench.benchmark.bench_case import BenchCase
    from attnbench.benchmark.comparing.duel import Duel
    from attnbench.cli.duel_plan import Plan, Request


def command(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="REVISION [REVISION] [SUBJECTS]",
            help="One revision to compare with the working tree, or two revisions, and the "
            "subjects (by default those of [tool.attnbench], or all of this repository). Or two "
            "subjects, such as two files or distributions. Or two recorded runs, files or folders. "
            "The verdict is on the second.",
        ),
    ],
    set_name: option.Set = "compare",
    workload: option.Workload = None,
    inputs: option.Inputs = None,
    dtype: option.Dtypes = None,
    device: option.Device = "cpu",
    threads: option.Threads = 1,
    budget: Annotated[
        float,
        typer.Option("--budget", min=0.0, help="Seconds after which no further pair starts."),
    ] = 600.0,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Most seconds for one block of a row.")
    ] = 120.0,
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin",
            min=0.0,
            help="Changes up to this many percent are same or, if certain, slightly slower or "
            "faster: by default 3, or 5 for recorded runs.",
            show_default=False,
        ),
    ] = None,
    results: option.Results = option.RESULTS,
    as_json: option.AsJson = False,
) -> int:
    """Decide for each case whether B is faster or slower than A, the same, or ambiguous.

    A change that is certain but within --margin is slightly faster or slightly slower.

    Revisions and subjects are measured here in pairs, with both sides taking turns on one core: 15
    pairs, then up to 30 and 60 for undecided rows. Exits with 1 if a row is slower, and with 4 if a
    row is ambiguous.
    """
    from attnbench.cli.duel_plan import classify

    request = classify(targets, results)
    margin = (5 if request.runs else 3) if margin is None else margin
    if request.runs:
        return _compare_runs(request.runs, results, margin / 100, as_json)
    from attnbench.benchmark.workloads import Selection, saved

    name = None if workload or inputs else set_name
    selection = Selection(name, workload or (), inputs=inputs, dtypes=dtype)
    cases = selection.cases((device,))
    cases += [saved(**selection.saved(device))] if inputs else []
    options = {"margin": margin / 100, "budget_s": budget}
    return _compare_here(request, cases, as_json, threads=threads, timeout_s=timeout, **options)


def _compare_here(request: Request, cases: list[BenchCase], as_json: bool, **options: Any) -> int:
    """Compare by measuring; the verdicts so far are shown even after Ctrl-C."""
    from attnbench.cli.duel_plan import duel

    with duel(request, cases, **options) as plan:
        interrupted = plan.run("comparing")
    _show_duel(plan, as_json, interrupted=interrupted)
    if interrupted:
        return INTERRUPTED
    refusals = [row for row in plan.duel.rows if row.refused]
    if not plan.duel.rows:  # all are new in B
        return INCONCLUSIVE
    if len(refusals) == len(plan.duel.rows) and not any(row.differs for row in refusals):
        raise UsageError(f"nothing could be compared: {refusals[0].subject}: {refusals[0].reason}")
    return exit_code(row.verdict for row in plan.duel.rows)


def _show_duel(plan: Plan, as_json: bool, *, interrupted: bool) -> None:
    from attnbench.cli.printing.verdict_tables import duel_json

    duel = plan.duel
    if as_json:
        content = {
            "a": plan.a,
            "b": plan.b,
            "margin": duel.margin,
            "looks": duel.looks,
            "pairs": duel.pairs,
            "seconds": duel.seconds,
            "row_s": duel.row_s,
            "load": duel.load,
            "interrupted": interrupted,
            "rows": [duel_json(row) for row in duel.rows],
            "notes": plan.notes,
        }
        print_json(content)
        return
    typer.echo(f"A: {plan.a}\nB: {plan.b}")
    if duel.rows:
        _show_table(duel)
    for note in plan.notes:
        typer.echo(f"Note: {note}")
    if interrupted:
        typer.echo(f"Interrupted after {duel.pairs} pairs: undecided rows stay ambiguous.")


def _show_table(duel: Duel) -> None:
    from attnbench.cli.printing.verdict_tables import LEGEND, counts_line, duel_row

    right = ("change", "from", "to", "would see", "spread", "pairs")
    print_table([duel_row(row) for row in duel.rows], right=right)
    for reason, count in Counter(row.reason for row in duel.rows if row.reason).items():
        if any((row.reason == reason and not row.decided) or row.refused for row in duel.rows):
            typer.echo(f"{count} {'row' if count == 1 else 'rows'}: {reason}.")
    summary = counts_line(row.verdict for row in duel.rows)
    if duel.short and any(row.verdict == "ambiguous" for row in duel.rows):
        summary += " (a larger --budget decides more)"
    shares = ", ".join(f"{share:.1%} at {pairs}" for pairs, share in duel.looks.items())
    calls = sum(duel.looks.values())
    typer.echo(
        f"{summary}.\n"
        + LEGEND.format(margin=f"{100 * duel.margin:g} %")
        + "\nspread: standard deviation of a pair.\n"
        f"Of tables in which nothing had changed, {calls:.1%} would call a row slower or faster "
        f"({shares} pairs).\n"
        f"{duel.pairs} pairs in {duel.seconds:.0f} s, {duel.row_s:.2f} s per row and pair; other "
        f"processes kept {duel.load.get('others_cores', 0.0):.1f} of "
        f"{duel.load.get('cores', 0.0):.0f} cores busy."
    )


def _compare_runs(runs: Sequence[str], results: Path, margin: float, as_json: bool) -> int:
    """Compare recorded runs."""
    from attnbench.benchmark.comparing.comparison import compare, read_side
    from attnbench.cli.printing.verdict_tables import (
        LEGEND,
        counts_line,
        recorded_json,
        recorded_row,
        without_constants,
    )

    a, b = runs
    comparison = compare(read_side(a, results), read_side(b, results), margin=margin)
    verdicts = [row.verdict.verdict for row in comparison.rows]
    if as_json:
        rows = [recorded_json(row) for row in comparison.rows]
        print_json({"a": a, "b": b, "margin": margin, "rows": rows, "notes": comparison.notes})
        return exit_code(verdicts)
    right = ("A ms", "B ms", "change", "from", "to", "would see")
    print_table(without_constants([recorded_row(row) for row in comparison.rows]), right=right)
    reasons = Counter(row.verdict.reason for row in comparison.rows if row.verdict.reason)
    for reason, count in reasons.items():
        typer.echo(f"{count} ambiguous: {reason}.")
    typer.echo(
        f"{counts_line(verdicts)}.\nTimes are geometric means over processes. "
        "The bounds hold for all rows at once in 95 of 100 tables, for each row in 99.\n"
        + LEGEND.format(margin=f"{100 * margin:g} %")
    )
    for note in comparison.notes:
        typer.echo(f"Note: {note}")
    return exit_code(verdicts)
