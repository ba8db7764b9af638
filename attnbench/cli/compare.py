"""``attnbench compare``: whether B is faster or slower than A, with simultaneous intervals."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.benchmark.machine import busy_cores
from attnbench.benchmark.workloads import Selection, saved
from attnbench.cli import options as option
from attnbench.cli.exit_codes import INCONCLUSIVE, INTERRUPTED, exit_code
from attnbench.cli.printing.tables import print_json, print_parts
from attnbench.errors import UsageError
from attnbench.report.verdict_tables import (
    LEGEND,
    counts_line,
    duel_json,
    table_of,
)

if TYPE_CHECKING:
    from attnbench.benchmark.comparing.duel import Duel
    from attnbench.cli.duel_plan import Plan
    from attnbench.report.notebook_tables import Comparison

_MEASURED = ("margin", "looks", "pairs", "seconds", "load")


def compare(
    *targets: str,
    set_name: str = "compare",
    workload: Sequence[str] = (),
    inputs: Path | None = None,
    dtypes: Sequence[str] | None = None,
    device: str = "cpu",
    threads: int = 1,
    budget: float = 600.0,
    timeout: float = 120.0,
    margin: float = 3.0,
    results: Path = option.RESULTS,
) -> Comparison:
    """Decide for each case whether B is faster or slower than A, the same, or ambiguous.

    This is ``attnbench compare``, with its options as arguments; each side runs in a process of its
    own. After Ctrl-C, rows that are undecided by then stay ambiguous.

    Args:
        targets: revisions and subjects, or two subjects.
        set_name, workload, inputs: the cases; the last two replace the set.
        dtypes: replace those of the set.
        device, threads: device and number of threads of torch.
        budget, timeout: seconds, of the whole and of one block of a row.
        margin: percent; smaller changes are same or slight.
        results: folder of recorded runs, whose names no revision may have.

    Raises:
        UsageError: the targets cannot be compared.
        UnknownNameError: a target is no revision or subject.
    """
    from attnbench.cli.duel_plan import classify, duel

    request = classify(targets, results)
    name = None if workload or inputs else set_name
    selection = Selection(name, workload, inputs=inputs, dtypes=dtypes)
    cases = selection.cases((device,))
    cases += [saved(**selection.saved(device))] if inputs else []
    options: dict[str, Any] = {"threads": threads, "timeout_s": timeout, "budget_s": budget}
    with duel(request, cases, margin=margin / 100, **options) as plan:
        interrupted = plan.run("comparing")
    return _compared_here(plan, interrupted=interrupted)


def command(
    targets: option.Sides,
    set_name: option.Set = "compare",
    workload: option.Workload = None,
    inputs: option.Inputs = None,
    dtype: option.Dtypes = None,
    device: option.Device = "cpu",
    threads: option.Threads = 1,
    budget: option.Budget = 600.0,
    timeout: option.RowTimeout = 120.0,
    margin: option.Margin = 3.0,
    results: option.Results = option.RESULTS,
    as_json: option.AsJson = False,
) -> int:
    """Decide for each case whether B is faster or slower than A, the same, or ambiguous.

    A change that is certain but within --margin is slightly faster or slightly slower.

    Revisions and subjects are measured here in pairs, with both sides taking turns on one core: 15
    pairs, then up to 30 and 60 for undecided rows. Exits with 1 if a row is slower, and with 4 if a
    row is ambiguous.
    """
    comparison = compare(
        *targets,
        set_name=set_name,
        workload=workload or (),
        inputs=inputs,
        dtypes=dtype,
        device=device,
        threads=threads,
        budget=budget,
        timeout=timeout,
        margin=margin,
        results=results,
    )
    if as_json:
        print_json(comparison.data)
    else:
        print_parts(comparison.parts)
    rows = comparison.data["rows"]
    if comparison.data.get("interrupted"):
        return INTERRUPTED
    if not rows:  # all are new in B
        return INCONCLUSIVE
    if not any(row["timed"] or row["differs"] for row in rows):
        reason = f"{rows[0]['subject']}: {rows[0]['reason']}"
        raise UsageError(f"nothing could be compared: {reason}")
    return exit_code(row["verdict"] for row in rows)


def _compared_here(plan: Plan, *, interrupted: bool) -> Comparison:
    """What was measured, with the verdicts so far, also after Ctrl-C."""
    duel = plan.duel
    data = {
        "a": plan.a,
        "b": plan.b,
        **{name: getattr(duel, name) for name in _MEASURED},
        "interrupted": interrupted,
        "rows": [duel_json(row) for row in duel.rows],
        "notes": plan.notes,
    }
    lines = _duel_lines(duel) if duel.rows else []
    lines += [f"Note: {note}" for note in plan.notes]
    if interrupted:
        lines.append(f"Interrupted after {duel.pairs} pairs: undecided rows stay ambiguous.")
    return _shown(data, lines)


def _duel_lines(duel: Duel) -> list[str]:
    reasons = Counter(row.reason for row in duel.rows if row.reason)
    lines = [
        f"{count} {'row' if count == 1 else 'rows'}: {reason}."
        for reason, count in reasons.items()
        if any((row.reason == reason and not row.decided) or row.refused for row in duel.rows)
    ]
    summary = counts_line(row.verdict for row in duel.rows)
    if duel.short and any(row.verdict == "ambiguous" for row in duel.rows):
        summary += " (a larger --budget decides more)"
    shares = ", ".join(f"{share:.1%} at {pairs}" for pairs, share in duel.looks.items())
    calls = sum(duel.looks.values())
    return [
        *lines,
        f"{summary}.",
        *LEGEND.format(margin=f"{100 * duel.margin:g} %").splitlines(),
        "spread: standard deviation of a pair.",
        f"Of tables in which nothing had changed, {calls:.1%} would call a row slower or faster "
        f"({shares} pairs).",
        f"{duel.pairs} pairs in {duel.seconds:.0f} s; other processes kept "
        f"{busy_cores(duel.load)}.",
    ]


def _shown(data: dict[str, Any], lines: Sequence[str]) -> Comparison:
    from attnbench.report.notebook_tables import Comparison

    table = [table_of(data["rows"])] if data["rows"] else []
    return Comparison(data, [f"A: {data['a']}\nB: {data['b']}", *table, "\n".join(lines)])
