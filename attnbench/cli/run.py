"""``attnbench run``: find the subjects, check them, measure them, and print one table."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench.cli.exit_codes import INTERRUPTED, exit_code
from attnbench.cli.options import AsJson, Strict, Targets

if TYPE_CHECKING:
    from attnbench.benchmark.records.record import Record
    from attnbench.checking.outcomes import Outcome

_RESULTS = Path("results/attnbench")
_INVARIANT_S = 60.0
_CHECKS_S = 100.0
_AT_ONCE = 8


def command(
    targets: Targets = None,
    inputs: Annotated[
        Path | None,
        typer.Option(
            "--inputs",
            help="A safetensors file with your own query, key, value and optional attn_mask, after "
            "projection and head split, to measure at instead of the small grid.",
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            help="A torch device to measure on; may be repeated. The CPU and any accelerator by "
            "default.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of torch.")] = 1,
    check_seconds: Annotated[
        float,
        typer.Option(
            "--check-seconds",
            min=0.0,
            help="Time for the checks; what is not checked by then is shown as such.",
        ),
    ] = _CHECKS_S,
    results: Annotated[Path, typer.Option("--results", help="Folder of the records.")] = _RESULTS,
    as_json: AsJson = False,
    strict: Strict = False,
) -> int:
    """Check every subject, measure it on a small grid, and print one table.

    The checks are those of 'attnbench check --profile quick', the times those of 'attnbench bench
    --set run'; both commands say more.
    """
    from attnbench.benchmark.measuring.contract import Contract
    from attnbench.checking import parallel
    from attnbench.checking.outcomes import CheckReport
    from attnbench.cli import benching
    from attnbench.cli.survey import ask, load_plugins
    from attnbench.cli.tables import print_json

    set_name = "run" if inputs is None else None
    place = benching.start(
        set_name=set_name, inputs=inputs, results=results, preload=parallel.PRELOAD
    )
    plugins = load_plugins(strict=strict)
    running = benching.plan(
        place,
        targets=targets,
        set_name=set_name,
        inputs=inputs,
        devices=device,
        contract=Contract(threads=threads),
    )
    options = {"profile": "quick", "device": "cpu", "dtypes": None}
    planned = ask("plan", targets=targets or None, invariants=None, **options)
    outcomes: list[Outcome] = []
    records: list[Record] = []
    interrupted = False
    try:
        _check(planned, options, check_seconds, outcomes)
        running.measure(records)
    except KeyboardInterrupt:
        interrupted = True
    notes = ("interrupted",) if interrupted else ()
    report = CheckReport(tuple(outcomes), "quick", None, notes)
    checks = running.path.with_suffix(".checks.json")
    checks.write_text(report.to_json() + "\n", encoding="utf-8")
    if as_json:
        content = {"file": str(running.path), "checks_file": str(checks)}
        content["outcomes"] = [vars(outcome) for outcome in outcomes]  # type: ignore[assignment]
        print_json({**content, "records": benching.as_rows(records)})
    else:
        _show(running.session.subjects, planned["of_subject"], outcomes, records)
        typer.echo(f"\nrecorded {len(records)} measurements in {running.path},")
        typer.echo(f"and {len(outcomes)} outcomes of checks in {checks}")
    if interrupted:
        return INTERRUPTED
    failed = any(row["status"] == "failed" for row in plugins)
    statuses = [outcome.status for outcome in outcomes] + benching.statuses_of(records)
    return exit_code(statuses, plugin_failed=failed)


def _check(
    planned: Mapping[str, Any],
    options: Mapping[str, Any],
    seconds: float,
    into: list[Outcome],
) -> None:
    """Run the checks until the time is up; every outcome goes to the list as it comes.

    All subjects are held to some invariants before any is held to the next ones, so that the time
    is shared alike.
    """
    from attnbench.checking import parallel
    from attnbench.cli.tables import progress
    from attnbench.processes.pool import MEMORY_GIB

    names = tuple(dict(planned["invariants"]))
    works = [
        work
        for start in range(0, len(names), _AT_ONCE)
        for work in parallel.works_of(
            planned["subjects"], names[start : start + _AT_ONCE], planned["of_subject"]
        )
        if work.invariants
    ]
    until = time.monotonic() + seconds
    found = parallel.run_checks(
        works,
        {**options, "seed": None},
        jobs=0,
        timeout_s=_INVARIANT_S,
        memory_gib=MEMORY_GIB,
    )
    with progress(sum(len(work.invariants) for work in works), "checking") as advance:
        for outcome in found:
            into.append(outcome)
            advance(1, f"{outcome.subject}: {outcome.invariant}")
            if time.monotonic() > until:
                found.close()  # type: ignore[attr-defined]
                break


_LEGEND = """\
checks    invariants that hold, of those that say something of the subject ('attnbench check' says
          which do not); with +n not run, n were left when the time for checks was up; subjects
          with options are left to 'attnbench check'
time_ms   median time of one forward call; x_dot is that over the time of scaled_dot
peak_MiB  most memory of tensors during the call beyond inputs and parameters
error     largest error against float64 as a multiple of what is allowed: up to 1 is agreement
status    ok: agreed with the reference on this very case and was measured on a quiet machine;
          only then is it ranked"""


def _show(
    subjects: Sequence[Any],
    invariants: Mapping[str, Sequence[str]],
    outcomes: Iterable[Outcome],
    records: list[Record],
) -> None:
    """One table: a row for each subject and case."""
    from attnbench.cli import benching
    from attnbench.cli.tables import print_table

    checks = _checks(outcomes, invariants)
    by_case = {(record.contract, record.case): record for record in records}
    rows, measured = [], []
    for key, found in benching.ranked(records).items():
        measured += found
        record = by_case[key]
        for row in found:
            place = "" if record.device == "cpu" else f" on {record.device}"
            rows.append(
                {
                    "subject": row["subject"],
                    "checks": checks.get(row["subject"], "not run"),
                    "case": f"{record.workload}{place}",
                    **{n: row[n] for n in ("time_ms", "x_dot", "peak_MiB", "error", "status")},
                }
            )
    print_table(rows, empty="Nothing was measured.")
    for line in benching.reasons(measured):
        typer.echo(line)
    typer.echo("\n" + _LEGEND + "\n")
    for line in dict.fromkeys(benching.titled(record) for record in by_case.values()):
        typer.echo(line)


def _checks(outcomes: Iterable[Outcome], invariants: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """For each subject how many invariants hold, of how many that apply."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes:
        counts[outcome.subject][outcome.status] += 1
    texts = {}
    for subject, counter in counts.items():
        seen = counter.total()
        text = f"{counter['passed']}/{seen - counter['skipped']}"
        left = len(invariants.get(subject, ())) - seen
        texts[subject] = text if left <= 0 else f"{text} +{left} not run"
    return texts
