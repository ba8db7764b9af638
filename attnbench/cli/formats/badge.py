"""A badge: the JSON that https://shields.io/badges/endpoint-badge reads."""

from __future__ import annotations

import json

from attnbench.cli.formats.places import Findings


def render(findings: Findings) -> str:
    """How many properties hold, or how many fail, with a colour."""
    report = findings.report
    holding, failing = len(report.of("passed")), len(findings.report.failures)
    held = "1 property holds" if holding == 1 else f"{holding} properties hold"
    text = held if report.ok else f"{failing} of {holding + failing} fail"
    if not holding and not failing:
        text = "nothing checked"
    colour = "brightgreen" if report.ok else "red" if failing else "lightgrey"
    return json.dumps({"schemaVersion": 1, "label": "attnbench", "message": text, "color": colour})
