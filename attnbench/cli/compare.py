"""``attnbench compare``: is B faster or slower than A, with intervals that hold for the table."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench.cli.exit_codes import exit_code
from attnbench.cli.options import AsJson
from attnbench.cli.tables import print_json, print_table

if TYPE_CHECKING:
    from attnbench.benchmark.comparing.verdict import Verdict
    from attnbench.benchmark.records.record import Record


def command(
    a: Annotated[str, typer.Argument(help="What to compare against: a run, a file or a folder.")],
    b: Annotated[str, typer.Argument(help="What to judge, likewise.")],
    margin: Annotated[
        float, typer.Option("--margin", min=0.0, help="A change below this many percent is same.")
    ] = 5.0,
    results: Annotated[
        Path, typer.Option("--results", help="Folder of runs, and of the calibration.")
    ] = Path("results/attnbench"),
    as_json: AsJson = False,
) -> int:
    """Call each case of B faster, slower, same or ambiguous against A.

    Evidence are the medians of processes, at least five a side, best measured in turn. Exits with 1
    if something is slower, and with 4 if something is ambiguous.
    """
    from attnbench.benchmark.comparing.calibration import read_calibration
    from attnbench.benchmark.comparing.comparison import compare, read_side

    found = compare(
        read_side(a, results),
        read_side(b, results),
        calibration=read_calibration(results),
        margin=margin / 100,
    )
    if as_json:
        rows = [_as_json(v, found.examples[_key(v)]) for v in found.verdicts]
        print_json({"a": a, "b": b, "margin": margin / 100, "rows": rows, "notes": found.notes})
        return exit_code(v.verdict for v in found.verdicts)
    shown = [_row(v, found.examples[_key(v)]) for v in found.verdicts]
    right = ("A ms", "B ms", "change", "from", "to", "would see")
    print_table(_without_constants(shown), right=right)
    for reason, count in Counter(v.reason for v in found.verdicts if v.reason).items():
        typer.echo(f"{count} ambiguous: {reason}.")
    typer.echo(_explained(found.verdicts, margin))
    for note in found.notes:
        typer.echo(f"Note: {note}")
    return exit_code(v.verdict for v in found.verdicts)


def _key(verdict: Verdict) -> tuple[str, str, str]:
    contract, subject, case = verdict.key
    return contract, subject, case


def _share(value: float) -> str:
    return "-" if math.isnan(value) else "any" if math.isinf(value) else f"{value:+.1%}"


def _milliseconds(seconds: float) -> str:
    return "-" if math.isnan(seconds) else f"{seconds * 1e3:.4g}"


def _row(verdict: Verdict, example: Record) -> dict[str, Any]:
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
        "from": _share(verdict.low),
        "to": _share(verdict.high),
        "would see": "nothing" if math.isinf(verdict.visible) else _share(verdict.visible),
        "verdict": verdict.verdict,
    }


def _without_constants(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without the columns that tell none of them apart."""
    names = ("dtype", "device", "mask", "direction", "cache")
    same = {name for name in names if len({row[name] for row in rows}) == 1}
    return [{k: v for k, v in row.items() if k not in same} for row in rows]


def _explained(verdicts: list[Verdict], margin: float) -> str:
    counts = [
        f"{sum(v.verdict == name for v in verdicts)} {name}"
        for name in ("slower", "faster", "same", "ambiguous")
    ]
    return (
        f"{', '.join(counts)}.\nTimes are geometric means of process medians. The change of B "
        "against A lies between 'from' and 'to' in all rows at once (95 %; 99 % for each row "
        f"alone); same: within ±{margin:g} % for sure. 'would see' is the smallest slowdown that "
        "this comparison would have called slower in 95 of 100."
    )


def _as_json(verdict: Verdict, example: Record) -> dict[str, Any]:
    def number(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "subject": example.subject,
        "case": example.case,
        "workload": example.workload,
        "contract": example.contract,
        "verdict": verdict.verdict,
        "change": number(verdict.effect),
        "low": number(verdict.low),
        "high": number(verdict.high),
        "would_see": number(verdict.visible),
        "a_time_s": number(verdict.a_s),
        "b_time_s": number(verdict.b_s),
        "processes": list(verdict.processes),
        "calibrated": verdict.calibrated,
        "alternated": verdict.alternated,
        "reason": verdict.reason,
    }
