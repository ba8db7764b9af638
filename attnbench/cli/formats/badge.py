"""A badge: the JSON that https://shields.io/badges/endpoint-badge reads."""

from __future__ import annotations

import json

from attnbench.cli.formats.places import Findings


def render(findings: Findings) -> str:
    """How many properties hold, or how many fail, with a colour."""
    report = findings.report
    passed, bad = len(report.of("passed")), len(findings.bad)
    text = f"{passed} properties hold" if report.ok else f"{bad} of {passed + bad} fail"
    if not passed and not bad:
        text = "nothing checked"
    colour = "brightgreen" if report.ok else "red" if bad else "lightgrey"
    return json.dumps({"schemaVersion": 1, "label": "attnbench", "message": text, "color": colour})
