"""How the outcomes of a check are shown: tables, failures whole, and JUnit XML."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from attnbench.cases import Case
from attnbench.cli._tables import print_table
from attnbench.outcomes import STATUSES, CheckReport, Outcome

__all__ = ["case_in_words", "failure_text", "show", "write_junit"]

_GOOD = ("passed", "skipped")


def show(report: CheckReport, statements: Mapping[str, str], *, every: bool) -> None:
    """Print a report: a table, each failure whole, and a summary.

    Args:
        report: what to show.
        statements: of the invariants, by name.
        every: show a row an outcome instead of a row a subject.
    """
    print_table(_rows(report) if every else _counts(report), empty="No subject, nothing checked.")
    bad = [outcome for outcome in report.outcomes if outcome.status not in _GOOD]
    for alike in _alike(bad):
        if alike[0].reason.startswith("not run"):
            print(f"{alike[0].subject}: {len(alike)} more invariants were {alike[0].reason}\n")
            continue
        print(failure_text(alike[0], statements.get(alike[0].invariant, "")))
        if alike[1:]:
            print(_filled("and for the same reason: ", ", ".join(o.invariant for o in alike[1:])))
        print()
    counts = ", ".join(f"{count} {status}" for status, count in report.counts.items())
    print("; ".join([counts or "nothing checked", *report.notes]))


def _rows(report: CheckReport) -> list[dict[str, Any]]:
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


def failure_text(outcome: Outcome, statement: str = "") -> str:
    """A failure, whole: property, values, smallest counterexample, diagnosis, how to reproduce."""
    lines = [f"{outcome.status.upper()} {outcome.subject}: {outcome.invariant}"]
    if statement:
        lines.append(_filled("property: ", statement))
    reason = outcome.reason.partition("\n  [")[0] if outcome.counterexample else outcome.reason
    lines.append(textwrap.indent(reason, "  "))
    if outcome.counterexample:
        lines.append(f"  smallest counterexample: {case_in_words(outcome.counterexample)}")
        lines.append(f"    case {outcome.counterexample}")
    if outcome.error is not None:
        lines.append(f"  error: {outcome.error:.3g} times what is allowed")
    if outcome.diagnosis:
        lines.append(_filled("diagnosis: ", outcome.diagnosis))
    if outcome.reproduce:
        lines += ["  reproduce:", textwrap.indent(outcome.reproduce.rstrip(), "    ")]
    return "\n".join(lines)


def _filled(head: str, text: str) -> str:
    return textwrap.fill(
        head + text,
        width=100,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def case_in_words(case_id: str) -> str:
    """A case as one would tell it: its sizes, and what is not ordinary about it."""
    case = Case.from_id(case_id)
    lead = "x".join(map(str, case.lead)) or "none"
    parts = [
        f"leading sizes {lead}, L={case.q_len}, S={case.kv_len}, Eq={case.query_size}, "
        f"Ek={case.key_size}, Ev={case.value_size}",
        case.dtype,
        "no mask" if case.mask == "none" else f"mask {case.mask}",
    ]
    ordinary = Case()
    if case.layout != ordinary.layout:
        parts.append(f"layout {case.layout}")
    if case.regime != ordinary.regime:
        parts.append(f"values {case.regime}")
    if case.device != ordinary.device:
        parts.append(case.device)
    return ", ".join([*parts, f"seed {case.seed}"])


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
