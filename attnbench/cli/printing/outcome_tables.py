"""How the outcomes of a check are shown: as they come, failures whole, and as JUnit XML."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from attnbench.checking.outcomes import STATUSES, CheckReport, Outcome, failure_text, filled
from attnbench.cli.printing.tables import print_line

__all__ = ["Screen", "junit_xml"]

_GOOD = ("passed", "skipped")
_MOST = 12
"""Invariants that are named where many fail for one reason."""
_STATUS_WIDTH = max(map(len, STATUSES))


class Screen:
    """Prints outcomes as they come.

    Of one subject, each outcome is a line; of several, each subject is one, once it is through.
    What is wrong is shown at once: the first failure of a subject whole, one with another cause by
    its values, one with the same cause by its name.

    Args:
        subjects: how many outcomes each will have, by its label.
        statements: of the invariants, by name.
        verbose: show every outcome of every subject, also laws that it does not declare, and every
            failure whole.
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
        self._causes: dict[tuple[str, str, str], list[str]] = {}

    def add(self, outcome: Outcome) -> None:
        """Show an outcome."""
        found = self._found[outcome.subject]
        found.append(outcome)
        wrong = outcome.status not in _GOOD
        same = self._same_as(outcome) if wrong else None
        whole = wrong and (self._verbose or len(self._wrong_of(outcome.subject)) == 1)
        if whole:
            print_line(failure_text(outcome, self._statements.get(outcome.invariant, "")) + "\n")
        elif self._each and (self._verbose or outcome.reason != "law not declared"):
            self._line(outcome, f"for the same reason as {same}" if same else "")
        if wrong and same is None and not whole:
            self._brief(outcome)
        if not self._each and len(found) == self._expected[outcome.subject]:
            self._subject(outcome.subject, found)

    def end(self, report: CheckReport, seconds: float) -> None:
        """Show what only the whole report says: subjects cut short, diagnoses, and the counts."""
        for subject, found in self._found.items():
            if not self._each and len(found) < self._expected[subject]:
                self._subject(subject, found)
        for outcome in report.outcomes:
            if outcome.diagnosis:
                print_line(filled("diagnosis: ", f"{outcome.subject} {outcome.diagnosis}").strip())
        counts = ", ".join(f"{count} {status}" for status, count in report.counts.items())
        print_line("; ".join([f"{counts or 'nothing checked'} in {seconds:.0f} s", *report.notes]))

    def _same_as(self, outcome: Outcome) -> str | None:
        """An earlier invariant that said the same of the subject but for numbers."""
        key = outcome.subject, outcome.status, _cause(outcome)
        names = self._causes.setdefault(key, [])
        names.append(outcome.invariant)
        return names[0] if len(names) > 1 else None

    def _line(self, outcome: Outcome, told: str) -> None:
        name = f"{outcome.subject:{self._subject_width}}  " if self._named else ""
        line = f"{outcome.status:{_STATUS_WIDTH}}  {name}{outcome.invariant:{self._width}}"
        if outcome.status == "passed":
            cases = "case" if outcome.cases == 1 else "cases"
            told = f"{outcome.seconds:6.2f} s  {outcome.cases:3} {cases}: {outcome.reason}"
        elif outcome.status == "skipped":
            told = _first_line(outcome)
        print_line(f"{line}  {told}".rstrip(), outcome.status)

    def _subject(self, subject: str, found: Sequence[Outcome]) -> None:
        counts = CheckReport(tuple(found)).counts
        status = "passed" if set(counts) <= set(_GOOD) else "failed"
        for (name, _, _), (first, *others) in self._causes.items():
            if name == subject and others:
                more = f" and {len(others) - _MOST} more" if len(others) > _MOST else ""
                told = ", ".join(others[:_MOST]) + more
                print_line(filled(f"for the same reason as {first}: ", told) + "\n")
        told = ", ".join(f"{count} {status}" for status, count in counts.items())
        seconds = sum(outcome.seconds for outcome in found)
        cases = sum(outcome.cases for outcome in found)
        word = "ok" if status == "passed" else "see above"
        print_line(
            f"{word:9}  {subject:{self._subject_width}}  {seconds:6.1f} s  {cases} cases: {told}",
            status,
        )

    def _wrong_of(self, subject: str) -> list[Outcome]:
        return [o for o in self._found[subject] if o.status not in _GOOD]

    def _brief(self, outcome: Outcome) -> None:
        if not self._each:
            print_line(f"{outcome.status.upper()} {outcome.subject}: {outcome.invariant}")
        print_line(f"  {_short(outcome)}\n")


def _first_line(outcome: Outcome) -> str:
    return outcome.reason.partition("\n")[0]


def _short(outcome: Outcome) -> str:
    """The values that a failure showed and the case, or why its process ended."""
    text = _first_line(outcome)
    return f"{text}\n  case {outcome.counterexample}" if outcome.counterexample else text


def _cause(outcome: Outcome) -> str:
    """What is said of a failure, without its numbers."""
    cause = outcome.reason.partition("\n  because ")[2] or outcome.reason
    return re.sub(r"-?\d[\d.e+-]*|\[.*?\]", "#", cause.partition("\n  [")[0])


def junit_xml(report: CheckReport) -> bytes:
    """A report as JUnit XML: a suite a subject, a test case an invariant."""
    root = ElementTree.Element("testsuites", name="attnbench")
    for subject, group in itertools.groupby(report.outcomes, key=lambda o: o.subject):
        outcomes = list(group)
        counted = {
            "tests": len(outcomes),
            "failures": sum(o.status == "failed" for o in outcomes),
            "skipped": sum(o.status == "skipped" for o in outcomes),
            "errors": sum(o.status not in ("failed", *_GOOD) for o in outcomes),
            "time": f"{sum(o.seconds for o in outcomes):.3f}",
        }
        suite = ElementTree.SubElement(
            root, "testsuite", {"name": subject, **{k: str(v) for k, v in counted.items()}}
        )
        for outcome in outcomes:
            case = ElementTree.SubElement(
                suite,
                "testcase",
                classname=f"attnbench.{subject}",
                name=outcome.invariant,
                time=f"{outcome.seconds:.3f}",
            )
            if outcome.status == "passed":
                continue
            tag = outcome.status if outcome.status == "skipped" else "error"
            tag = "failure" if outcome.status == "failed" else tag
            first = outcome.reason.partition("\n")[0]
            said = ElementTree.SubElement(case, tag, message=_legal(first), type=outcome.status)
            if outcome.status != "skipped":
                said.text = _legal(failure_text(outcome))
    ElementTree.indent(root)
    content: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return content


def _legal(text: str) -> str:
    """Text without the control characters that XML cannot hold."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
