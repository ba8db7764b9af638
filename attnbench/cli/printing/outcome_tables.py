"""Prints the outcomes of a check on the terminal as they arrive."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence

from attnbench.checking.check_report import CheckReport
from attnbench.checking.gaps import HEAVY
from attnbench.checking.outcomes import STATUSES, Outcome
from attnbench.checking.report_text import (
    counts_text,
    failure_text,
    finding_text,
    gap_lines,
)
from attnbench.cli.printing.tables import print_line, screen_width
from attnbench.errors import first_line

_STATUS_WIDTH = max(map(len, STATUSES))
_FEW_LAWS = 2
"""How many undeclared laws are named below the table."""


class Screen:
    """Prints outcomes as they arrive.

    With one subject, each outcome is a line; with several, each finished subject is a line. The
    failures of a subject are explained after its last outcome: the most specific one is printed in
    full, the others by name.

    Args:
        subjects: expected number of outcomes by label of the subject.
        statements: statements of the invariants by name.
        verbose: show every outcome of every subject, including laws that it does not declare, and
            every failure in full.
    """

    def __init__(
        self, subjects: Mapping[str, int], statements: Mapping[str, str], *, verbose: bool = False
    ) -> None:
        self._expected, self._statements, self._verbose = subjects, statements, verbose
        self._by_outcome = verbose or len(subjects) == 1
        self._several = len(subjects) > 1
        self._subject_width = max(map(len, subjects), default=0)
        self._width = max(map(len, statements), default=0)
        self._outcomes: dict[str, list[Outcome]] = defaultdict(list)
        self._announced: set[tuple[str, str, str]] = set()

    def announce(self, outcome: Outcome) -> None:
        """Show that an invariant fails, before its outcome is added, which several parts may do."""
        lines = {*self._announced, *map(_line_of, self._outcomes[outcome.subject])}
        if self._by_outcome and not self._verbose and _line_of(outcome) not in lines:
            self._announced.add(_line_of(outcome))
            self._print_outcome(outcome)

    def add(self, outcome: Outcome) -> None:
        """Show an outcome."""
        outcomes = self._outcomes[outcome.subject]
        names = [other.invariant for other in outcomes]
        if outcome.invariant in names:  # it replaces an outcome that was shown
            earlier = outcomes[names.index(outcome.invariant)]
            outcomes[names.index(outcome.invariant)] = outcome
            if earlier.status == outcome.status:  # it only tells more
                return
            message = outcome.reason.splitlines()[-1].strip()
            line = f"{outcome.subject}: {outcome.invariant}: {outcome.status}: {message}"
            print_line(line, outcome.status)
            return
        outcomes.append(outcome)
        is_listed = self._by_outcome and _line_of(outcome) not in self._announced
        if self._verbose and not outcome.ok:
            print_line(failure_text(outcome, self._statements.get(outcome.invariant, "")) + "\n")
        elif is_listed and (self._verbose or not outcome.undeclared):
            self._print_outcome(outcome)
        if len(outcomes) == self._expected[outcome.subject]:
            self._print_subject(outcome.subject, outcomes)

    def end(self, report: CheckReport, seconds: float) -> None:
        """Show the subjects that were cut short, and the counts of the whole report."""
        for subject, outcomes in self._outcomes.items():
            if len(outcomes) < self._expected[subject]:
                self._print_subject(subject, outcomes)
        counts = counts_text(report)
        laws = {o.invariant: None for o in report.outcomes if o.undeclared}
        if self._by_outcome and not self._verbose and laws:
            names = f"law not declared: {', '.join(laws)}"
            number = f"{len(laws)} for laws that are not declared; -v lists them"
            counts += f" ({names if len(laws) <= _FEW_LAWS else number})"
        print_line(f"{counts} in {seconds:.0f} s")
        for note in report.notes:
            print_line(note)
        heavy_gaps = [gap for gap in report.coverage if gap.weight >= HEAVY]
        for line in gap_lines(heavy_gaps):
            print_line(line, "heavy")
        light_gaps = [gap for gap in report.coverage if gap.weight < HEAVY]
        for line in gap_lines(light_gaps) if self._by_outcome else ():
            print_line(line)

    def _print_outcome(self, outcome: Outcome) -> None:
        name = f"{outcome.subject:{self._subject_width}}  " if self._several else ""
        head = f"{outcome.status:{_STATUS_WIDTH}}  {name}{outcome.invariant}"
        column = _STATUS_WIDTH + 2 + len(name) + self._width
        message = f"{outcome.seconds:6.2f} s  {_cases(outcome.cases, 3)}"
        if outcome.status == "passed":
            message += f": {outcome.reason}"
        elif outcome.status == "skipped":
            message = first_line(outcome.reason)
        print_line(_two_parts(head, column, message), outcome.status)

    def _print_subject(self, subject: str, outcomes: Sequence[Outcome]) -> None:
        failures = [outcome for outcome in outcomes if not outcome.ok]
        if failures:
            gap = "\n" if self._by_outcome else ""
            print_line(f"{gap}{finding_text(failures, self._statements)}\n")
        if self._by_outcome:
            return
        message = counts_text(CheckReport(tuple(outcomes)))
        seconds = sum(outcome.seconds for outcome in outcomes)
        cases = sum(outcome.cases for outcome in outcomes)
        state = "ok" if any(outcome.status == "passed" for outcome in outcomes) else "skipped"
        head = f"{'see above' if failures else state:9}  {subject}"
        column = 11 + self._subject_width
        message = f"{seconds:6.1f} s  {_cases(cases)}: {message}"
        print_line(_two_parts(head, column, message), "failed" if failures else "passed")


def _line_of(outcome: Outcome) -> tuple[str, str, str]:
    return outcome.subject, outcome.invariant, outcome.status


def _cases(count: int, width: int = 0) -> str:
    return f"{count:{width}} {'case' if count == 1 else 'cases'}"


def _two_parts(head: str, column: int, text: str) -> str:
    """A line whose second part starts at a column; wrapped if the terminal is too narrow."""
    line, width = f"{head:{column}}  {text}".rstrip(), screen_width()
    if width is None or len(line) <= width:
        return line
    joined, indent = f"{head}  {' '.join(text.split())}", " " * 4
    return textwrap.fill(
        joined,
        max(width, 20),
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
