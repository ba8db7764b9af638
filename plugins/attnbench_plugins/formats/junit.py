"""JUnit XML: one suite per subject, one test case per invariant."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree

from attnbench.commands import Findings, failure_text
from attnbench.errors import first_line


def render(findings: Findings) -> str:
    """The report as JUnit XML."""
    root = ElementTree.Element("testsuites", name="attnbench")
    for subject, group in itertools.groupby(findings.report.outcomes, key=lambda o: o.subject):
        outcomes = list(group)
        counts = {
            "tests": len(outcomes),
            "failures": sum(o.status == "failed" for o in outcomes),
            "skipped": sum(o.status == "skipped" for o in outcomes),
            "errors": sum(not o.ok and o.status != "failed" for o in outcomes),
            "time": f"{sum(o.seconds for o in outcomes):.3f}",
        }
        suite = ElementTree.SubElement(
            root, "testsuite", {"name": subject, **{k: str(v) for k, v in counts.items()}}
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
            first = _legal(first_line(outcome.reason))
            element = ElementTree.SubElement(case, tag, message=first, type=outcome.status)
            if outcome.status != "skipped":
                element.text = _legal(failure_text(outcome))
    ElementTree.indent(root)
    content = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return str(content, "utf-8")


def _legal(text: str) -> str:
    """Replace the control characters that XML does not allow."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
