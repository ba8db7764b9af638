"""Prints the outcomes of a check as they arrive, alike on a terminal and in a pipe."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from attnbench.checking.check_report import (
    CheckReport,
    counts_text,
    failure_text,
    finding_text,
    gap_lines,
)
from attnbench.checking.gaps import HEAVY
from attnbench.checking.outcomes import Outcome, lead_of
from attnbench.errors import first_line
from attnbench.report.printing import print_line

_COUNTS_WIDTH = 44

_SAYINGS = {
    "passed": ("1 property holds", "{} properties hold"),
    "failed": ("1 fails", "{} fail"),
    "error": ("1 is broken itself", "{} are broken themselves"),
    "crashed": ("1 crashed", "{} crashed"),
    "timeout": ("1 timed out", "{} timed out"),
    "inconclusive": ("1 is inconclusive", "{} are inconclusive"),
    "exempt": ("1 is exempt", "{} are exempt"),
    "not run": ("1 was not run", "{} were not run"),
    "skipped": ("1 does not apply", "{} do not apply"),
}
"""What is said of one, and of several, properties with an outcome."""


class Screen:
    """Prints a line for each subject, below the report of its failures.

    The failure that shows best what is wrong is printed in full, the others by name; the first of a
    subject is announced as soon as it is found.

    Args:
        subjects: expected number of outcomes by label of the subject.
        statements: statements of the invariants by name.
        verbose: print a row for each outcome, and every failure in full.
        questions: the most lines on what was not looked at that leaves a usual bug unlikely.
    """

    def __init__(
        self,
        subjects: Mapping[str, int],
        statements: Mapping[str, str],
        *,
        verbose: bool = False,
        questions: int = 0,
    ) -> None:
        self._expected, self._statements, self._verbose = subjects, statements, verbose
        self._questions = questions
        self._width = max(map(len, subjects), default=0)
        self._name_width = max(map(len, statements), default=0)
        self._outcomes: dict[str, dict[str, Outcome]] = defaultdict(dict)
        self._announced: set[str] = set()

    def add(self, outcome: Outcome) -> None:
        """Add an outcome, and print what is complete."""
        subject = outcome.subject
        outcomes = self._outcomes[subject]
        earlier = outcomes.get(outcome.invariant)
        outcomes[outcome.invariant] = outcome
        is_complete = len(outcomes) == self._expected[subject]
        if earlier is not None and earlier.status == outcome.status:  # it only tells more
            return
        if self._verbose:
            self._print_outcome(outcome)
        elif is_complete and earlier is not None:  # its subject was shown already
            where = f"{subject}: {outcome.invariant}"
            print_line(f"{where}: {outcome.status}: {first_line(outcome.reason)}", outcome.status)
        elif not (outcome.ok or is_complete or subject in self._announced):
            print_line(f"{outcome.status:12}  {subject}: {outcome.invariant}", outcome.status)
            at = f", in case {outcome.counterexample}" if outcome.counterexample else ""
            print_line(f"  {first_line(outcome.reason)}{at}")
            self._announced.add(subject)
        if is_complete and earlier is None:
            self._print_subject(subject)

    def end(self, report: CheckReport, seconds: float, next_step: str = "") -> None:
        """Print the subjects that were cut short, the counts, the notes and what to do next."""
        for subject, outcomes in self._outcomes.items():
            if len(outcomes) < self._expected[subject]:
                self._print_subject(subject)
        print_line(f"{counts_text(report)} in {seconds:.0f} s")
        for note in report.notes:
            print_line(note)
        for line in gap_lines([gap for gap in report.coverage if gap.weight >= HEAVY]):
            print_line(line, "heavy")
        light = [gap for gap in report.coverage if gap.weight < HEAVY]
        for line in gap_lines(light if self._verbose else light[: self._questions]):
            print_line(line)
        if next_step:
            print_line(f"Next: {next_step}")

    def _print_outcome(self, outcome: Outcome) -> None:
        if not outcome.ok:
            print_line(failure_text(outcome, self._statements.get(outcome.invariant, "")) + "\n")
            return
        name = f"{outcome.subject:{self._width}}  " if len(self._expected) > 1 else ""
        cases = f"{outcome.cases:3} {'case' if outcome.cases == 1 else 'cases'}: "
        reason = outcome.reason if outcome.status == "passed" else first_line(outcome.reason)
        print_line(
            f"{outcome.status:12}  {name}{outcome.invariant:{self._name_width}}  "
            f"{outcome.seconds:6.2f} s  {cases if outcome.status == 'passed' else ''}{reason}",
            outcome.status,
        )

    def _print_subject(self, subject: str) -> None:
        outcomes = list(self._outcomes[subject].values())
        failures = [outcome for outcome in outcomes if not outcome.ok]
        if failures and not self._verbose:
            print_line(f"\n{finding_text(failures, self._statements)}\n")
        seconds = sum(outcome.seconds for outcome in outcomes)
        text = f"{subject:{self._width}}  {holding_text(outcomes)}"
        if len(self._expected) > 1:  # those of one alone stand in the next line
            text = f"{text:{self._width + 2 + _COUNTS_WIDTH}}  {seconds:.1f} s"
        print_line(text, "failed" if failures else "passed")


def holding_text(outcomes: Sequence[Outcome]) -> str:
    """How many properties hold, fail and do not apply, in words."""
    counts = Counter(map(_kind, outcomes))
    parts = [] if counts["passed"] else ["no property holds"]
    for kind, (one, several) in _SAYINGS.items():
        if counts[kind]:
            parts.append(one if counts[kind] == 1 else several.format(counts[kind]))
    return ", ".join(parts)


def _kind(outcome: Outcome) -> str:
    if outcome.status != "skipped":
        return outcome.status
    return next((k for k in ("exempt", "not run") if outcome.reason.startswith(f"{k}:")), "skipped")


def next_step(report: CheckReport, targets: Sequence[str]) -> str:
    """The command to try next: on a failure alone, on more cases, or on speed.

    Args:
        report: the report of the check.
        targets: what was checked, as it was named; empty for all.
    """
    names = " ".join(targets)
    if report.failures:
        first = report.failures[0].subject
        lead = lead_of([outcome for outcome in report.failures if outcome.subject == first])
        return lead.command or f"attnbench check {lead.subject} --invariant {lead.invariant}"
    if not report.of("passed"):
        return f"attnbench check {names} -v".replace("  ", " ") + " says why nothing was checked"
    if report.profile == "quick":
        more = "attnbench check " + f"{names} ".lstrip() + "--profile default"
        return f"{more} draws more cases"
    return f"attnbench bench {names}".rstrip() + " measures what it costs"
