"""The content of the first screen of ``attnbench run``, as plain data."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnbench.benchmark.records.record import Record
from attnbench.checking.outcomes import Outcome
from attnbench.errors import first_line
from attnbench.report import record_tables


def check_counts(
    outcomes: Iterable[Outcome], invariants: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """For each subject, the number of invariants that hold and that apply, and those violated."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    violations: dict[str, list[str]] = defaultdict(list)
    for outcome in outcomes:
        counts[outcome.subject][outcome.status] += 1
        if not outcome.ok:
            violations[outcome.subject].append(f"{outcome.invariant} {outcome.status}")
    return {
        subject: {
            "passed": counter["passed"],
            "of": counter.total() - counter["skipped"],
            "not_run": max(0, len(invariants.get(subject, ())) - counter.total()),
            "wrong": violations[subject],
        }
        for subject, counter in counts.items()
    }


def wrong_lines(
    checks: Mapping[str, Mapping[str, Any]],
    records: Iterable[Record],
    addresses: Mapping[str, str],
) -> list[tuple[str, str]]:
    """The subjects that failed in a check or a measurement, each with a line that says how."""
    lines = []
    for subject, row in checks.items():
        if row["wrong"]:
            names = ", ".join(row["wrong"][:3])
            suffix = f" and {len(row['wrong']) - 3} more" if len(row["wrong"]) > 3 else ""
            command = _check_command(subject, addresses)
            lines.append((subject, f"{subject}: {names}{suffix}; {command}"))
    for record in records:
        if record.status not in ("ok", "unsupported"):
            reason = first_line(record.reason)
            place = f"{record.workload} on {record.machine_name}".removesuffix(" on ")
            line = f"{record.subject} at {place}: {record.status}: {reason}"
            lines.append((record.subject, line))
    return lines


def left_out(subjects: Sequence[str], unchecked: int, *, own_inputs: bool) -> list[dict[str, str]]:
    """The parts that a run leaves out, each with the command that runs it."""
    parts = []
    if subjects:
        parts.append(
            {
                "what": f"{len(subjects)} subjects with options",
                "command": f"attnbench bench '{subjects[0]}'",
            }
        )
    if unchecked:
        parts.append(
            {
                "what": f"{unchecked} checks for which there was no time",
                "command": "attnbench run --check-seconds 600",
            }
        )
    parts.append(
        {"what": "the other cases of each check", "command": "attnbench check --profile default"}
    )
    if not own_inputs:
        what = "masks, backward passes and real workloads"
        parts.append({"what": what, "command": "attnbench bench --set default"})
    return parts


def _check_command(subject: str, addresses: Mapping[str, str]) -> str:
    """The command that checks a subject by its address; a file's subject has no global name."""
    return f"attnbench check {shlex.quote(addresses.get(subject, subject))}"


def next_commands(
    failed: Sequence[str], records: Sequence[Record], addresses: Mapping[str, str]
) -> list[str]:
    """Commands to try next, the first of the subjects that failed before all else."""
    if failed:
        return [_check_command(failed[0], addresses)]
    measured = [
        r.subject for r in records if r.status == "ok" and r.baseline != r.subject and r.commit
    ]
    return [
        "attnbench report",
        f"attnbench compare HEAD {shlex.quote(addresses.get(measured[0], measured[0]))}"
        if measured
        else "attnbench new my-scores",
    ]


def content(
    records: Sequence[Record],
    outcomes: Sequence[Outcome],
    invariants: Mapping[str, Sequence[str]],
    options_left_out: Sequence[str],
    *,
    own_inputs: bool,
    addresses: Mapping[str, str],
) -> dict[str, Any]:
    """The content of the screen as plain data."""
    checks = check_counts(outcomes, invariants)
    failures = wrong_lines(checks, records, addresses)
    unchecked = sum(row["not_run"] for row in checks.values())
    return {
        "wrong": [line for _, line in failures],
        "checks": checks,
        "left_out": left_out(options_left_out, unchecked, own_inputs=own_inputs),
        "next": next_commands([subject for subject, _ in failures], records, addresses),
        "busy": record_tables.busy_line(records),
    }
