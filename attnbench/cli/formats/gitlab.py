"""GitLab's code quality report: https://docs.gitlab.com/ci/testing/code_quality/."""

from __future__ import annotations

import hashlib
import json

from attnbench.cli.formats.places import Findings, Place
from attnbench.errors import first_line


def render(findings: Findings) -> str:
    """The failures as a list; those without a known place are reported at the repository's root."""
    rows = []
    for outcome in findings.report.failures:
        place = findings.place_of(outcome) or Place(".", 1)
        name = f"{outcome.subject}: {outcome.invariant}"
        rows.append(
            {
                "description": f"{name}: {first_line(outcome.reason)}",
                "check_name": outcome.invariant,
                "fingerprint": hashlib.sha256(name.encode()).hexdigest(),
                "severity": "minor" if outcome.status == "inconclusive" else "major",
                "location": {"path": place.file, "lines": {"begin": place.line}},
            }
        )
    return json.dumps(rows, indent=2, ensure_ascii=False)
