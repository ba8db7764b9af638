"""GitHub Actions: annotations at lines of code, and the summary of the job.

Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attnbench import CheckReport, Outcome, UsageError
from attnbench.commands import Findings, counts_text, finding_text, lead_of

_SUMMARY = "GITHUB_STEP_SUMMARY"
_MOST_CHARACTERS = 4000
"""Characters of a finding in an annotation: readable, and far below GitHub's limit of 64 KB."""


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
    groups: dict[tuple[str, Any], list[Outcome]] = defaultdict(list)
    for outcome in findings.report.failures:
        groups[outcome.subject, findings.place_of(outcome)].append(outcome)
    return "\n".join(_annotation(outcomes, place) for (_, place), outcomes in groups.items())


def _annotation(outcomes: Sequence[Outcome], place: Any) -> str:
    level = "warning" if all(o.status == "inconclusive" for o in outcomes) else "error"
    suffix = f" and {len(outcomes) - 1} more" if len(outcomes) > 1 else ""
    lead = lead_of(outcomes)
    title = f"{lead.subject}: {lead.invariant}{suffix}"
    where = {} if place is None else {"file": place.file, "line": str(place.line)}
    properties = {**where, "title": title}.items()
    message = ",".join(f"{key}={_escaped(text, ':,')}" for key, text in properties)
    return f"::{level} {message}::{_escaped(finding_text(outcomes)[:_MOST_CHARACTERS])}"


def _escaped(text: str, signs: str = "") -> str:
    for sign in ("%", "\r", "\n", *signs):
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


def _summary(findings: Findings) -> str:
    """The counts of all and of each subject, and its failures with the way to run them again."""
    report = findings.report
    sign = "✅" if report.ok else "❌"
    lines = [f"### {sign} attnbench: {counts_text(report)}"]
    for name, outcomes in report.by_subject.items():
        lines += ["", f"#### `{name}`: {counts_text(CheckReport(tuple(outcomes)))}"]
        if failures := [o for o in outcomes if not o.ok]:
            command = lead_of(failures).command
            lines += ["", f"Run it: `{command}`"] if command else []
            lines += ["", "~~~text", finding_text(failures, findings.statements), "~~~"]
    lines += ["", *(f"- {note}" for note in report.notes)]
    return "\n".join(lines).rstrip() + "\n"
