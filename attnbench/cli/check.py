"""``attnbench check``: check subjects against every invariant that applies to them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.checking import parallel
from attnbench.checking.check_report import CheckReport
from attnbench.checking.gaps import Gap, coverage_of
from attnbench.checking.known_failures import KnownFailures, exempted
from attnbench.checking.outcomes import Announced, Outcome, notes_of
from attnbench.checking.profiles import PROFILES
from attnbench.checking.work import key_of, works_of
from attnbench.cli import options as option
from attnbench.cli.configuration import check_defaults
from attnbench.cli.exit_codes import INTERRUPTED, exit_code
from attnbench.cli.formats import FORMATS, formats_of
from attnbench.cli.formats.places import findings_of
from attnbench.cli.plugin_loading import PLAN, ask, load_plugins, try_options
from attnbench.cli.printing.outcome_tables import Screen
from attnbench.cli.printing.output_files import check_writable, write_file
from attnbench.cli.printing.tables import print_line, progress
from attnbench.errors import UsageError, either
from attnbench.processes.pool import MEMORY_GIB

_TIMEOUTS_S = {"quick": 120.0, "default": 240.0, "thorough": 900.0}


def command(
    targets: option.Targets = None,
    style: option.Style = None,
    call: option.Call = None,
    convention: option.Convention = None,
    make: option.Make = None,
    jobs: option.Jobs = 0,
    profile: option.Profile = "quick",
    seed: option.Seed = None,
    cluster: option.Cluster = None,
    dtype: Annotated[
        list[str] | None, typer.Option("--dtype", help="A dtype to check; may be repeated.")
    ] = None,
    device: option.Device = "cpu",
    invariant: option.Invariants = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            min=0.1,
            help="Most seconds for an invariant on a subject; by default 120, 240 or 900, by "
            "profile.",
        ),
    ] = None,
    memory: option.Memory = MEMORY_GIB,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop at the first outcome that is not good.")
    ] = False,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            metavar="FORMAT[=FILE]",
            help=f"{either(FORMATS)}, printed or in a file; may be repeated.",
        ),
    ] = None,
    exempt: Annotated[
        list[str] | None,
        typer.Option(
            "--exempt",
            metavar="NAME=REASON",
            help="An invariant, or 'SUBJECT: INVARIANT', that is not run; may be repeated.",
        ),
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option("--baseline", help="A file of known failures, which are skipped."),
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write today's failures to that file.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Show every outcome of every subject.")
    ] = False,
    as_json: option.AsJson = False,
    strict: option.Strict = False,
) -> int:
    """Check subjects against every invariant that applies to them.

    For an invariant that passed, the report says how many cases it saw: scheduled ones, which are
    the same for every subject, and drawn ones, which are random. Each subject runs in its own
    process. If that hangs or dies, it is recorded as the outcome, and the other subjects go on.
    """
    started = time.monotonic()
    output = formats_of(formats or (), as_json=as_json)
    if update_baseline and baseline is None:
        raise UsageError("--update-baseline needs a file: --baseline FILE.")
    updated = baseline if update_baseline else None
    if updated:
        check_writable(updated, "--update-baseline")
    known_failures = KnownFailures.read(baseline, update=update_baseline)
    count = len(targets) if targets else None
    plugins = load_plugins(strict=strict, preload=parallel.preload(count, invariant))
    addresses = option.parse_targets(targets, style, convention, call, make)
    try_options(addresses or ())
    settings = {"profile": profile, "device": device, "dtypes": dtype}
    plan = ask(PLAN, targets=addresses, invariants=invariant or None, **settings)
    statements = dict(plan["invariants"])
    works = works_of(plan["subjects"], list(statements), plan["of_subject"])
    expected = {work.label: len(work.invariants) for work in works}
    screen = Screen(expected, statements, verbose=verbose) if output.has_text else None
    for line in plan["about"] if output.has_text else ():
        print_line(line)
    works = [replace(work, seed=seed) for work in works]
    names = [row["invariant"] for row in ask("invariant_rows")] if exempt else []
    exemptions = {key_of(skip): skip for skip in exempted(exempt or (), works, names)}
    run = _Run(known_failures, screen, fail_fast, exemptions)
    limits: dict[str, Any] = {
        "jobs": jobs,
        "timeout_s": timeout or _TIMEOUTS_S[profile],
        "memory_gib": memory,
    }
    earlier = tuple(run.by_key.values())
    options = {**settings, "user_invariants": tuple(invariant or ()), "announce": True}
    checks = parallel.run_checks(works, options, cluster=cluster, recorded=earlier, **limits)
    with contextlib.closing(checks):  # its children end here, also early
        run.collect(checks, sum(expected.values()) - len(earlier))
    labels, names = list(expected), list(statements)
    outcomes = sorted(
        run.by_key.values(), key=lambda o: (labels.index(o.subject), names.index(o.invariant))
    )
    notes = run.notes(len(outcomes))
    if updated:
        known_failures = known_failures.updated(outcomes, invariant)
        write_file(updated, known_failures.text.encode(), "--update-baseline")
        notes.append(f"known failures in {baseline}: {len(known_failures.entries)}")
    is_part = plan["left_out"] or targets != check_defaults().get("targets", targets)
    notes += known_failures.remarks(outcomes, invariant, None if is_part else expected)
    outcomes = [known_failures.skip_known(outcome) for outcome in outcomes]
    gaps = coverage_of((Gap(**row) for row in plan["gaps"]), plan["laws"], outcomes)
    report = CheckReport(tuple(outcomes), profile, seed, tuple(notes), tuple(plan["about"]), gaps)
    if screen is not None:
        screen.end(report, time.monotonic() - started)
        if profile == "quick" and outcomes and not run.ended:
            print_line(_default_profile_line(plan["left_out"]))
    output.write(findings_of(report, statements, works, located=output.has_places))
    if run.ended == "interrupted":
        return INTERRUPTED
    statuses = [outcome.status for outcome in outcomes]
    if "passed" not in statuses and not any(map(known_failures.has_skipped, outcomes)):
        statuses.append("inconclusive")  # all skipped: nothing was checked
    return exit_code(statuses, plugins)


@dataclass
class _Run:
    """The outcomes of a check as they come.

    Args:
        known_failures: failures that do not count.
        screen: shows each outcome at once.
        fail_fast: whether to stop at the first outcome that is not good.
        by_key: the newest outcome of each subject and invariant.
        ended: ``interrupted`` or ``stopped``, if the run ended early.
    """

    known_failures: KnownFailures
    screen: Screen | None
    fail_fast: bool
    by_key: dict[tuple[str, int | None, str], Outcome] = field(default_factory=dict)
    ended: str = ""

    def collect(self, outcomes: Iterable[Outcome], count: int) -> None:
        """Store and show outcomes until the last one, a failure or Ctrl-C."""
        try:
            self._show(*self.by_key.values())
            with progress(count, "checking") as advance:
                for outcome in outcomes:
                    if isinstance(outcome, Announced):
                        self._announce(outcome)
                        continue
                    new = key_of(outcome) not in self.by_key
                    outcome = self.known_failures.skip_known(outcome)
                    self.by_key[key_of(outcome)] = outcome
                    self._show(outcome)
                    advance(new, f"{outcome.subject}: {outcome.invariant}")
                    if self.fail_fast and not outcome.ok:
                        self.ended = "stopped"
                        break
        except KeyboardInterrupt:
            self.ended = "interrupted"

    def _announce(self, outcome: Outcome) -> None:
        if self.screen is not None and not self.known_failures.skip_known(outcome).ok:
            self.screen.announce(outcome)

    def _show(self, *outcomes: Outcome) -> None:
        if self.screen is not None:
            for outcome in outcomes:
                self.screen.add(outcome)

    def notes(self, count: int) -> list[str]:
        """Remarks on a run with this number of outcomes."""
        endings = {
            "interrupted": [f"interrupted after {count} outcomes"],
            "stopped": [f"stopped at the first failure, after {count} outcomes (--fail-fast)"],
        }
        return [*endings.get(self.ended, []), *notes_of([*self.by_key.values()])]


def _default_profile_line(left_out: int) -> str:
    """A line about the profile default, with the number of subjects that quick leaves out."""
    counts = [PROFILES[name].drawn for name in ("default", "quick")]
    suffix = f", and checks {left_out} more subjects, which have options" if left_out else ""
    return f"--profile default draws {counts[0]} cases instead of {counts[1]}{suffix}."
