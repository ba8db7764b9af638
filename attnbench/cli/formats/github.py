"""GitHub Actions: annotations at lines of code, and the summary of the job.

Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from attnbench.checking.check_report import CheckReport
from attnbench.checking.outcomes import Outcome
from attnbench.checking.report_text import counts_text, finding_text, first_line
from attnbench.cli.formats.places import Findings, Place
from attnbench.errors import UsageError

_SUMMARY = "GITHUB_STEP_SUMMARY"
_SHOWN = 4000
"""Characters of a finding in an annotation; GitHub cuts one at 64 KB, and a reader before."""


def render(findings: Findings) -> str:
    """The annotations, one a subject and line; the summary goes to GitHub's file, if there is one.

    Raises:
        UsageError: GitHub's file cannot be written.
    """
    path = os.environ.get(_SUMMARY)
    if path:
        try:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(_summary(findings))
        except OSError as error:
            raise UsageError(f"{_SUMMARY}={path} cannot be written: {error.strerror}.") from None
    found: dict[tuple[str, Place | None], list[Outcome]] = defaultdict(list)
    for outcome in findings.bad:
        found[outcome.subject, findings.place_of(outcome)].append(outcome)
    return "\n".join(_annotation(bad, place) for (_, place), bad in found.items())


def _annotation(bad: Sequence[Outcome], place: Place | None) -> str:
    level = "warning" if all(o.status == "inconclusive" for o in bad) else "error"
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    title = f"{bad[0].subject}: {bad[0].invariant}{more}"
    where = {} if place is None else {"file": place.file, "line": str(place.line)}
    given = {**where, "title": title}.items()
    message = ",".join(f"{key}={_escaped(text, ':,')}" for key, text in given)
    return f"::{level} {message}::{_escaped(finding_text(bad)[:_SHOWN])}"


def _escaped(text: str, also: str = "") -> str:
    for sign in ("%", "\r", "\n", *also):
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def _summary(findings: Findings) -> str:
    """The counts, a table of the subjects, and each failure with the way to run it again."""
    report = findings.report
    sign = "✅" if report.ok else "❌"
    lines = [f"### {sign} attnbench: {counts_text(report)}", ""]
    lines += ["| subject | outcomes | likely cause |", "|---|---|---|"]
    subjects = dict.fromkeys(outcome.subject for outcome in report.outcomes)
    of = {name: [o for o in report.outcomes if o.subject == name] for name in subjects}
    for name, outcomes in of.items():
        bad = [o for o in outcomes if not o.ok]
        cause = next((o.diagnosis for o in bad if o.diagnosis), None)
        message = cause or (f"{bad[0].invariant}: {first_line(bad[0].reason)}" if bad else "")
        cells = (f"`{name}`", counts_text(CheckReport(tuple(outcomes))), message)
        lines.append("|".join(["", *(cell.replace("|", "\\|") for cell in cells), ""]))
    for name, outcomes in of.items():
        bad = [o for o in outcomes if not o.ok]
        if bad:
            message = finding_text(bad, findings.statements)
            lines += ["", f"#### `{name}`", "", "~~~text", message, "~~~"]
            lines += [f"Run it: `{o.command}`" for o in bad[:1] if o.command]
    lines += ["", *(f"- {note}" for note in report.notes)]
    return "\n".join(lines).rstrip() + "\n"
