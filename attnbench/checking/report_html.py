"""A report as notebooks show it: the counts, a row for each subject, and the failures in full."""

from __future__ import annotations

import html
from collections import Counter
from typing import Any

from attnbench.checking.outcomes import STATUSES
from attnbench.checking.plain_tables import html_lines, html_table
from attnbench.checking.report_text import counts_text, finding_text

CheckReport = Any
"""A :class:`attnbench.CheckReport`, which shows itself so."""


def report_html(report: CheckReport) -> str:
    """The report as a fragment of HTML, without script or style sheet."""
    statuses = [status for status in STATUSES if report.counts.get(status)]
    rows = []
    for name, outcomes in report.by_subject.items():
        counts = Counter(outcome.status for outcome in outcomes)
        rows.append({"subject": name, **{status: counts[status] or "" for status in statuses}})
    parts = [f"<p><b>{counts_text(report)}</b></p>{html_table(rows)}"]
    for name, outcomes in report.by_subject.items():
        failures = [outcome for outcome in outcomes if not outcome.ok]
        if failures:
            text = f'<pre style="white-space: pre-wrap">{html.escape(finding_text(failures))}</pre>'
            head = f"<summary>{html.escape(name)}</summary>"
            parts.append(f'<details open="">{head}{text}</details>')
    return "".join(parts) + html_lines(report.notes)
