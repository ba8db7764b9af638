"""How the outcomes of a check are shown: tables, failures whole, and JUnit XML."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from attnbench.checking.outcomes import STATUSES, CheckReport, Outcome, failure_text, filled
from attnbench.cli.tables import print_table

__all__ = ["show", "write_junit"]

_GOOD = ("passed", "skipped")


def show(
    report: CheckReport, statements: Mapping[str, str], *, every: bool, laws: bool = False
) -> None:
    """Print a report: a table, each failure whole, and a summary.

    Args:
        report: what to show.
        statements: of the invariants, by name.
        every: show a row an outcome instead of a row a subject.
        laws: show the laws that a subject does not declare, too.
    """
    rows = _rows(report, laws=laws) if every else _counts(report)
    print_table(rows, empty="No subject, nothing checked.")
    bad = [outcome for outcome in report.outcomes if outcome.status not in _GOOD]
    for alike in _alike(bad):
        if alike[0].reason.startswith("not run"):
            print(f"{alike[0].subject}: {len(alike)} more invariants were {alike[0].reason}\n")
            continue
        print(failure_text(alike[0], statements.get(alike[0].invariant, "")))
        if alike[1:]:
            print(filled("and for the same reason: ", ", ".join(o.invariant for o in alike[1:])))
        print()
    counts = ", ".join(f"{count} {status}" for status, count in report.counts.items())
    print("; ".join([counts or "nothing checked", *report.notes]))


def _rows(report: CheckReport, *, laws: bool) -> list[dict[str, Any]]:
    several = len({outcome.subject for outcome in report.outcomes}) > 1
    return [
        {
            **({"subject": o.subject} if several else {}),
            "invariant": o.invariant,
            "status": o.status,
            "cases": o.cases or None,
            "time_s": o.seconds if o.status != "skipped" else None,
            "": o.reason.splitlines()[0] if o.status in _GOOD and o.reason else "see below",
        }
        for o in report.outcomes
        if laws or o.reason != "law not declared"
    ]


def _counts(report: CheckReport) -> list[dict[str, Any]]:
    rows = []
    shown = [s for s in STATUSES if report.counts.get(s) or s in ("passed", "failed", "skipped")]
    for subject, group in itertools.groupby(report.outcomes, key=lambda o: o.subject):
        outcomes = list(group)
        row: dict[str, Any] = {"subject": subject}
        row |= {status: sum(o.status == status for o in outcomes) or None for status in shown}
        row["cases"] = sum(o.cases for o in outcomes)
        row["time_s"] = sum(o.seconds for o in outcomes)
        row[""] = "ok" if all(o.status in _GOOD for o in outcomes) else "see below"
        rows.append(row)
    return rows


def _alike(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Outcomes of one subject that say the same but for numbers, together."""
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        cause = outcome.reason.partition("\n  because ")[2] or outcome.reason
        cause = re.sub(r"-?\d[\d.e+-]*|\[.*?\]", "#", cause.partition("\n  [")[0])
        groups.setdefault((outcome.subject, outcome.status, cause), []).append(outcome)
    return list(groups.values())


def write_junit(report: CheckReport, path: Path) -> None:
    """Write a report as JUnit XML: a suite a subject, a test case an invariant."""
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
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def _legal(text: str) -> str:
    """Text without the control characters that XML cannot hold."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
