"""Output of the outcomes of a check on the terminal, as they come."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence

from attnbench.checking.cause.likely_cause import with_cause
from attnbench.checking.check_report import CheckReport
from attnbench.checking.coverage import HEAVY
from attnbench.checking.outcomes import STATUSES, Outcome
from attnbench.checking.report_text import (
    counts_text,
    failure_text,
    finding_text,
    first_line,
    gap_lines,
)
from attnbench.cli.printing.tables import print_line, screen_width

_NO_LAW = "law not declared"
_STATUS_WIDTH = max(map(len, STATUSES))
_FEW_LAWS = 2
"""How many undeclared laws are named below the table."""


class Screen:
    """Prints outcomes as they come.

    With one subject, each outcome is a line; with several, each finished subject is a line. The
    failures of a subject are explained after its last outcome, when the likely cause is known: the
    failure that shows it best in full, and the others by name.

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
        self._each = verbose or len(subjects) == 1
        self._named = len(subjects) > 1
        self._subject_width = max(map(len, subjects), default=0)
        self._width = max(map(len, statements), default=0)
        self._found: dict[str, list[Outcome]] = defaultdict(list)

    def add(self, outcome: Outcome) -> None:
        """Show an outcome."""
        found = self._found[outcome.subject]
        places = [place for place, one in enumerate(found) if one.invariant == outcome.invariant]
        if places:  # what replaces an outcome that was shown
            found[places[0]] = outcome
            message = outcome.reason.splitlines()[-1].strip()
            line = f"{outcome.subject}: {outcome.invariant}: {outcome.status}: {message}"
            print_line(line, outcome.status)
            return
        found.append(outcome)
        wrong = not outcome.ok
        if wrong and self._verbose:
            print_line(failure_text(outcome, self._statements.get(outcome.invariant, "")) + "\n")
        elif self._each and (self._verbose or outcome.reason != _NO_LAW):
            self._line(outcome)
        if len(found) == self._expected[outcome.subject]:
            self._subject(outcome.subject, found)

    def end(self, report: CheckReport, seconds: float) -> None:
        """Show the subjects that were cut short, and the counts of the whole report."""
        for subject, found in self._found.items():
            if len(found) < self._expected[subject]:
                self._subject(subject, found)
        counts = counts_text(report)
        laws = {o.invariant: None for o in report.outcomes if o.reason == _NO_LAW}
        if self._each and not self._verbose and laws:
            few = f"law not declared: {', '.join(laws)}"
            many = f"{len(laws)} for laws that are not declared; -v lists them"
            counts += f" ({few if len(laws) <= _FEW_LAWS else many})"
        print_line(f"{counts} in {seconds:.0f} s")
        for note in report.notes:
            print_line(note)
        heavy = [gap for gap in report.coverage if gap.weight >= HEAVY]
        for line in gap_lines(heavy):
            print_line(line, "heavy")
        for line in gap_lines([gap for gap in report.coverage if gap not in heavy and self._each]):
            print_line(line)

    def _line(self, outcome: Outcome) -> None:
        name = f"{outcome.subject:{self._subject_width}}  " if self._named else ""
        head = f"{outcome.status:{_STATUS_WIDTH}}  {name}{outcome.invariant}"
        column = _STATUS_WIDTH + 2 + len(name) + self._width
        cases = "case" if outcome.cases == 1 else "cases"
        message = f"{outcome.seconds:6.2f} s  {outcome.cases:3} {cases}"
        if outcome.status == "passed":
            message += f": {outcome.reason}"
        elif outcome.status == "skipped":
            message = first_line(outcome.reason)
        print_line(_fitted(head, column, message), outcome.status)

    def _subject(self, subject: str, found: Sequence[Outcome]) -> None:
        bad = [outcome for outcome in with_cause(found) if not outcome.ok]
        if bad:
            gap = "\n" if self._each else ""
            print_line(f"{gap}{finding_text(bad, self._statements)}\n")
        if self._each:
            return
        message = counts_text(CheckReport(tuple(found)))
        seconds = sum(outcome.seconds for outcome in found)
        cases = sum(outcome.cases for outcome in found)
        head, column = f"{'see above' if bad else 'ok':9}  {subject}", 11 + self._subject_width
        message = f"{seconds:6.1f} s  {cases} cases: {message}"
        print_line(_fitted(head, column, message), "failed" if bad else "passed")


def _fitted(head: str, column: int, rest: str) -> str:
    """A line whose second part starts at a column; wrapped if the terminal is too narrow."""
    line, width = f"{head:{column}}  {rest}".rstrip(), screen_width()
    if width is None or len(line) <= width:
        return line
    text, indent = f"{head}  {' '.join(rest.split())}", " " * 4
    return textwrap.fill(
        text,
        max(width, 20),
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
