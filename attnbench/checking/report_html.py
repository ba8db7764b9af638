"""A report as notebooks show it: the counts, a row for each subject, and the failures in full."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from attnbench.checking.outcomes import STATUSES
from attnbench.checking.report_text import counts_text, finding_text

if TYPE_CHECKING:
    from attnbench.checking.check_report import CheckReport


def report_html(report: CheckReport) -> str:
    """The report as a fragment of HTML, without script or style sheet."""
    statuses = [status for status in STATUSES if report.counts.get(status)]
    heads = "".join(f"<th>{name}</th>" for name in ("subject", *statuses))
    parts = [f"<p><b>{counts_text(report)}</b></p><table><tr>{heads}</tr>"]
    subjects = dict.fromkeys(outcome.subject for outcome in report.outcomes)
    by_subject = {name: [o for o in report.outcomes if o.subject == name] for name in subjects}
    for name, outcomes in by_subject.items():
        counts = [sum(o.status == status for o in outcomes) for status in statuses]
        cells = "".join(f"<td>{count or ''}</td>" for count in counts)
        parts.append(f"<tr><td>{html.escape(name)}</td>{cells}</tr>")
    parts.append("</table>")
    for name, outcomes in by_subject.items():
        failures = [outcome for outcome in outcomes if not outcome.ok]
        if failures:
            text = f'<pre style="white-space: pre-wrap">{html.escape(finding_text(failures))}</pre>'
            head = f"<summary>{html.escape(name)}</summary>"
            parts.append(f'<details open="">{head}{text}</details>')
    return "".join([*parts, *(f"<p>{html.escape(note)}</p>" for note in report.notes)])
