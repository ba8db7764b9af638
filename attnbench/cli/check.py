"""``attnbench check``: hold subjects to every invariant that applies to them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnbench.cli.exit_codes import INTERRUPTED, exit_code
from attnbench.cli.options import AsJson, Device, Jobs, Memory, Profile, Seed, Strict, Targets
from attnbench.processes.pool import MEMORY_GIB

_TIMEOUTS_S = {"quick": 120.0, "default": 240.0, "thorough": 900.0}


def command(
    targets: Targets = None,
    jobs: Jobs = 0,
    profile: Profile = "default",
    seed: Seed = None,
    dtype: Annotated[
        list[str] | None, typer.Option("--dtype", help="A dtype to look at; may be repeated.")
    ] = None,
    device: Device = "cpu",
    invariant: Annotated[
        list[str] | None,
        typer.Option("--invariant", help="An invariant to run; may be repeated."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0.1,
            help="Seconds that an invariant may take on a subject; 120, 240 or 900 by profile.",
        ),
    ] = None,
    memory: Memory = MEMORY_GIB,
    junit: Annotated[
        Path | None, typer.Option("--junit", help="Write the outcomes as JUnit XML, too.")
    ] = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show every outcome, of every subject.")
    ] = False,
    as_json: AsJson = False,
    strict: Strict = False,
) -> int:
    """Hold subjects to every invariant that applies to them.

    Each subject runs in a process of its own; one that hangs or dies has that for its outcome, and
    the others go on.
    """
    from attnbench.checking import parallel
    from attnbench.checking.evidence.diagnosis import diagnosed
    from attnbench.checking.outcomes import CheckReport, Outcome
    from attnbench.cli import outcome_tables
    from attnbench.cli.survey import ask, load_plugins
    from attnbench.cli.tables import progress
    from attnbench.errors import UsageError

    if junit is not None and not junit.resolve().parent.is_dir():
        raise UsageError(f"--junit {junit}: there is no folder {junit.resolve().parent}.")
    plugins = load_plugins(strict=strict, preload=parallel.PRELOAD)
    chosen = {"profile": profile, "device": device, "dtypes": dtype}
    plan = ask("plan", targets=targets or None, invariants=invariant or None, **chosen)
    statements = dict(plan["invariants"])
    works = parallel.works_of(plan["subjects"], list(statements), plan["of_subject"])
    found: list[Outcome] = []
    interrupted = False
    try:
        with progress(sum(len(work.invariants) for work in works), "checking") as advance:
            for outcome in parallel.run_checks(
                parallel.dealt(works, jobs),
                {**chosen, "seed": seed},
                jobs=jobs,
                timeout_s=timeout or _TIMEOUTS_S[profile],
                memory_gib=memory,
            ):
                found.append(outcome)
                advance(1, f"{outcome.subject}: {outcome.invariant}")
    except KeyboardInterrupt:
        interrupted = True
    labels, names = [work.label for work in works], list(statements)
    found.sort(key=lambda found: (labels.index(found.subject), names.index(found.invariant)))
    notes = []
    if interrupted:
        notes.append(f"interrupted after {len(found)} outcomes")
    if plan["left_out"]:
        notes.append(f"{plan['left_out']} subjects with options left to --profile default")
    report = CheckReport(diagnosed(found), profile, seed, tuple(notes))
    if junit is not None:
        outcome_tables.write_junit(report, junit)
    if as_json:
        print(report.to_json())
    else:
        every = verbose or len(works) == 1
        outcome_tables.show(report, statements, every=every, laws=verbose)
    if interrupted:
        return INTERRUPTED
    statuses = [outcome.status for outcome in found]
    return exit_code(statuses, plugin_failed=any(row["status"] == "failed" for row in plugins))
