"""SARIF 2.1.0, which GitHub's code scanning and editors read: a rule per invariant.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from typing import Any
from urllib.parse import quote

from attnbench import Outcome
from attnbench.commands import Findings, failure_text


def render(findings: Findings) -> str:
    """The failures as a SARIF log with one run."""
    failures = findings.report.failures
    rules = dict.fromkeys(outcome.invariant for outcome in failures)
    driver = {
        "name": "attnbench",
        "version": version("attnbench"),
        "rules": [
            {"id": name, "shortDescription": {"text": findings.statements.get(name) or name}}
            for name in rules
        ],
    }
    run = {
        "tool": {"driver": driver},
        "results": [_result(o, findings) for o in failures],
    }
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{**run, "columnKind": "unicodeCodePoints"}],
    }
    return json.dumps(log, indent=2, ensure_ascii=False)


def _result(outcome: Outcome, findings: Findings) -> dict[str, Any]:
    place = findings.place_of(outcome)
    result: dict[str, Any] = {
        "ruleId": outcome.invariant,
        "level": "warning" if outcome.status == "inconclusive" else "error",
        "message": {"text": failure_text(outcome)},
        "partialFingerprints": {"subject/v1": f"{outcome.subject}: {outcome.invariant}"},
    }
    if place is not None:
        where = {
            "artifactLocation": {"uri": quote(place.file)},
            "region": {"startLine": place.line},
        }
        result["locations"] = [{"physicalLocation": where}]
    return result
