"""``attnbench compare``: whether B is faster or slower than A, with simultaneous intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench.cli.exit_codes import INTERRUPTED, exit_code
from attnbench.cli.options import AsJson
from attnbench.cli.printing.tables import print_json, print_table
from attnbench.errors import UsageError

if TYPE_CHECKING:
    from attnbench.benchmark.bench_case import BenchCase
    from attnbench.benchmark.comparing.duel import Row
    from attnbench.benchmark.comparing.verdict_of_pairs import Judged
    from attnbench.benchmark.comparing.verdict_of_runs import Verdict
    from attnbench.benchmark.records.record import Record
    from attnbench.cli.duel_plan import Asked, Plan


def command(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="REVISION [REVISION] [SUBJECTS]",
            help="One revision to compare with the working tree, or two revisions, and the "
            "subjects (by default all of this repository). Or two subjects, such as two files or "
            "distributions. Or two recorded runs, files or folders. The verdict is on the second.",
        ),
    ],
    set_name: Annotated[str, typer.Option("--set", help="Named set of cases.")] = "compare",
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", help="A real workload instead of a set; may be repeated."),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", help="A safetensors file with your own query, key and value."),
    ] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option("--dtype", help="A dtype that replaces those of the set; may be repeated."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="A torch device.")] = "cpu",
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of torch.")] = 1,
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
            help="Changes below this many percent count as same: by default 3, or 5 for recorded "
            "runs.",
            show_default=False,
        ),
    ] = None,
    results: Annotated[Path, typer.Option("--results", help="Folder of recorded runs.")] = Path(
        "results/attnbench"
    ),
    as_json: AsJson = False,
) -> int:
    """Decide for each case whether B is faster or slower than A, the same, or ambiguous.

    Revisions and subjects are measured here in pairs, with both sides taking turns on one core: 15
    pairs, then up to 30 and 60 for undecided rows. Exits with 1 if a row is slower, and with 4 if a
    row is ambiguous.
    """
    from attnbench.cli.duel_plan import asked

    found = asked(targets, results)
    if found.runs:
        return _recorded(found.runs, results, 0.05 if margin is None else margin / 100, as_json)
    from attnbench.benchmark.workloads import cases_of

    cases = cases_of(
        name=None if workload or inputs else set_name,
        workload_names=workload or (),
        inputs=inputs,
        devices=(device,),
        dtypes=dtype,
    )
    options = {"margin": 0.03 if margin is None else margin / 100, "budget_s": budget}
    return _measured(found, cases, as_json, threads=threads, timeout_s=timeout, **options)


def _measured(found: Asked, cases: list[BenchCase], as_json: bool, **options: Any) -> int:
    """Compare by measuring; the verdicts so far are shown even after Ctrl-C."""
    from attnbench.cli.duel_plan import duel
    from attnbench.cli.printing.tables import progress

    interrupted = False
    with duel(found, cases, **options) as plan:
        most = len(plan.duel.rows) * max(plan.duel.looks)
        try:
            with progress(most, "comparing") as advance:
                plan.duel.step = lambda rows: advance(rows, f"pair {plan.duel.pairs}")
                plan.duel.run()
        except KeyboardInterrupt:
            interrupted = True
    _show_duel(plan, as_json, interrupted=interrupted)
    if interrupted:
        return INTERRUPTED
    refused = [row for row in plan.duel.rows if row.refused]
    if len(refused) == len(plan.duel.rows) and not any(row.differs for row in refused):
        raise UsageError(f"nothing could be compared: {refused[0].subject}: {refused[0].reason}")
    return exit_code(row.verdict for row in plan.duel.rows)


def _show_duel(plan: Plan, as_json: bool, *, interrupted: bool) -> None:
    duel = plan.duel
    load = duel.load
    if as_json:
        content = {
            "a": plan.a,
            "b": plan.b,
            "margin": duel.margin,
            "looks": duel.looks,
            "pairs": duel.pairs,
            "seconds": duel.seconds,
            "row_s": duel.row_s,
            "load": load,
            "interrupted": interrupted,
            "rows": [_duel_json(row) for row in duel.rows],
            "notes": plan.notes,
        }
        print_json(content)
        return
    typer.echo(f"A: {plan.a}\nB: {plan.b}")
    right = ("change", "from", "to", "would see", "spread", "pairs")
    print_table([duel_row(row) for row in duel.rows], right=right)
    for reason, count in Counter(row.reason for row in duel.rows if row.reason).items():
        if any((row.reason == reason and not row.decided) or row.refused for row in duel.rows):
            typer.echo(f"{count} {'row' if count == 1 else 'rows'}: {reason}.")
    counts = Counter(row.verdict for row in duel.rows)
    told = ", ".join(f"{counts[n]} {n}" for n in ("slower", "faster", "same", "ambiguous"))
    told += " (a larger --budget decides more)" if counts["ambiguous"] and duel.short else ""
    shares = ", ".join(f"{share:.1%} at {look}" for look, share in duel.looks.items())
    margin, calls = f"{100 * duel.margin:g} %", sum(duel.looks.values())
    typer.echo(
        f"{told}.\n"
        "change: B's time over A's, minus 1 (+ is slower); from, to: hold for all rows at once.\n"
        f"slower, faster: 0 lies outside them, and the change is over {margin}.\n"
        f"same: the interval, or a significant change, lies within ±{margin}.\n"
        "would see: the smallest change that 95 of 100 such comparisons would call.\n"
        "spread: standard deviation of a pair.\n"
        f"If nothing had changed, {calls:.1%} of tables had a row called ({shares} pairs).\n"
        f"{duel.pairs} pairs in {duel.seconds:.0f} s, {duel.row_s:.2f} s per row and pair; other "
        f"processes kept {load.get('others_cores', 0.0):.1f} of {load.get('cores', 0.0):.0f} "
        "cores busy."
    )
    for note in plan.notes:
        typer.echo(f"Note: {note}")
    if interrupted:
        typer.echo(f"Interrupted after {duel.pairs} pairs: undecided rows stay ambiguous.")


def duel_row(row: Row) -> dict[str, Any]:
    """A row as the table shows it; without enough pairs there is no interval."""
    found = row.judged
    low, high = _interval(found) if found else ("-", "-")
    shown = {
        "change": _share(found.effect if found else math.nan),
        "from": low,
        "to": high,
        "would see": _share(found.visible if found else math.nan),
        "spread": _share(found.spread if found else math.nan).lstrip("+"),
        "pairs": str(len(row.values)),
    }
    case = row.case.workload or row.case.id
    return {"subject": row.subject, "case": case, **shown, "verdict": row.verdict}


def _duel_json(row: Row) -> dict[str, Any]:
    found = row.judged
    numbers = {
        name: _finite(getattr(found, name)) if found else None
        for name in ("effect", "low", "high", "visible", "spread")
    }
    return {
        "subject": row.subject,
        "case": row.case.id,
        "workload": row.case.workload,
        "verdict": row.verdict,
        **numbers,
        "pairs": len(row.values),
        "values": [row.values[number] for number in sorted(row.values)],
        "timed": not row.refused,
        "reason": row.reason,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _recorded(runs: Sequence[str], results: Path, margin: float, as_json: bool) -> int:
    """Compare recorded runs."""
    from attnbench.benchmark.comparing.comparison import compare, read_side

    a, b = runs
    found = compare(read_side(a, results), read_side(b, results), margin=margin)
    if as_json:
        rows = [_as_json(v, found.examples[_key(v)]) for v in found.verdicts]
        print_json({"a": a, "b": b, "margin": margin, "rows": rows, "notes": found.notes})
        return exit_code(v.verdict for v in found.verdicts)
    shown = [_row(v, found.examples[_key(v)]) for v in found.verdicts]
    right = ("A ms", "B ms", "change", "from", "to", "would see")
    print_table(_without_constants(shown), right=right)
    for reason, count in Counter(v.reason for v in found.verdicts if v.reason).items():
        typer.echo(f"{count} ambiguous: {reason}.")
    typer.echo(_explained(found.verdicts, 100 * margin))
    for note in found.notes:
        typer.echo(f"Note: {note}")
    return exit_code(v.verdict for v in found.verdicts)


def _key(verdict: Verdict) -> tuple[str, str, str]:
    contract, subject, case = verdict.key
    return contract, subject, case


def _share(value: float) -> str:
    return f"{value:+.1%}" if math.isfinite(value) else "-"


def _interval(found: Judged | Verdict) -> tuple[str, str]:
    """The bounds of a change; there are none where too little was measured."""
    bounded = math.isfinite(found.high)
    return (_share(found.low), _share(found.high)) if bounded else ("-", "-")


def _milliseconds(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1e3:.4g}"


def _row(verdict: Verdict, example: Record) -> dict[str, Any]:
    low, high = _interval(verdict)
    return {
        "subject": example.subject,
        "case": example.workload or example.case,
        "dtype": example.dtype,
        "device": example.device,
        "mask": example.mask,
        "direction": example.direction,
        "cache": example.cache,
        "A ms": _milliseconds(verdict.a_s),
        "B ms": _milliseconds(verdict.b_s),
        "processes": f"{verdict.processes[0]}, {verdict.processes[1]}",
        "change": _share(verdict.effect),
        "from": low,
        "to": high,
        "would see": "nothing" if math.isinf(verdict.visible) else _share(verdict.visible),
        "verdict": verdict.verdict,
    }


def _without_constants(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without the columns that are the same in all rows."""
    names = ("dtype", "device", "mask", "direction", "cache")
    same = {name for name in names if len({row[name] for row in rows}) == 1}
    return [{k: v for k, v in row.items() if k not in same} for row in rows]


def _explained(verdicts: list[Verdict], margin: float) -> str:
    counts = [
        f"{sum(v.verdict == name for v in verdicts)} {name}"
        for name in ("slower", "faster", "same", "ambiguous")
    ]
    return (
        f"{', '.join(counts)}.\nTimes are geometric means over processes. The change of B against "
        "A is between 'from' and 'to', for all rows at once (95 %; 99 % for each row alone). same: "
        f"surely within ±{margin:g} %. 'would see': the smallest slowdown that would have been "
        "called slower in 95 of 100 such comparisons."
    )


def _as_json(verdict: Verdict, example: Record) -> dict[str, Any]:
    return {
        "subject": example.subject,
        "case": example.case,
        "workload": example.workload,
        "contract": example.contract,
        "verdict": verdict.verdict,
        "effect": _finite(verdict.effect),
        "low": _finite(verdict.low),
        "high": _finite(verdict.high),
        "would_see": _finite(verdict.visible),
        "a_time_s": _finite(verdict.a_s),
        "b_time_s": _finite(verdict.b_s),
        "processes": list(verdict.processes),
        "alternated": verdict.alternated,
        "reason": verdict.reason,
    }
