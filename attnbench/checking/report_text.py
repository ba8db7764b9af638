"""Outcomes and failures in words; what a report, a test or JUnit XML shows of them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from attnbench.cases.case import Case
from attnbench.checking.cause.likely_cause import lead_of
from attnbench.checking.outcomes import CONTRACT, Failure, Outcome

if TYPE_CHECKING:
    from attnbench.checking.check_report import CheckReport
    from attnbench.checking.coverage import Gap

_GAPS = 4
"""Gaps that are shown."""

_SHORT = 240
"""Characters that pytest shows of an object's repr in a failed assertion."""


def report_in_short(report: CheckReport) -> str:
    """The counts and the first failure, as short as pytest shows an object."""
    bad = [outcome for outcome in report.outcomes if not outcome.ok]
    text = f"CheckReport({counts_text(report)}"
    if bad:
        lead = lead_of(bad)
        message = lead.diagnosis or first_line(lead.reason)
        text += f"; {lead.status}: {lead.invariant} on {lead.subject}: {message}"
    end = ") str(report) has the rest" if bad else ")"
    return textwrap.shorten(text, _SHORT - len(end), placeholder=" ...") + end


def report_in_full(report: CheckReport) -> str:
    """What is known of the subjects, each finding in full, the counts and the notes."""
    lines = list(report.about)
    bad = [outcome for outcome in report.outcomes if not outcome.ok]
    for subject in dict.fromkeys(outcome.subject for outcome in bad):
        lines.append(finding_text([o for o in bad if o.subject == subject]) + "\n")
    return "\n".join([*lines, counts_text(report), *report.notes, *gap_lines(report.coverage)])


def gap_lines(gaps: Sequence[Gap]) -> list[str]:
    """What was not looked at, in words; the few heaviest gaps."""
    lines = [f"Not looked at, {gap.subject}: {gap.what}; declare {gap.remedy}" for gap in gaps]
    rest = len(lines) - _GAPS
    return lines[:_GAPS] + [f"and {rest} more in coverage of --json"] * (rest > 0)


def counts_text(report: CheckReport) -> str:
    """How many outcomes there are of each status."""
    counts = ", ".join(f"{count} {status}" for status, count in report.counts.items())
    return counts or "nothing checked"


def finding_text(bad: Sequence[Outcome], statements: Mapping[str, str] | None = None) -> str:
    """Describe the failures of a subject: the likely cause, the best failure, the rest by name."""
    lead = lead_of(bad)
    others = [outcome for outcome in bad if outcome is not lead]
    statement = (statements or {}).get(lead.invariant, "")
    return "\n".join([*_heading(lead, bad), failure_text(lead, statement, others)])


def _heading(lead: Outcome, bad: Sequence[Outcome]) -> list[str]:
    if lead.diagnosis:
        return [f"{lead.subject}: {lead.diagnosis} (likely cause)"]
    if lead.failure is None or lead.failure.raised is None:
        return []
    failures = [outcome.failure for outcome in bad if outcome.failure is not None]
    same = sum(_raising(failure) == _raising(lead.failure) for failure in failures)
    of = f" in {same} of the {len(failures)} checks that failed" if len(failures) > 1 else ""
    return [f"{lead.subject}: it raises {_raising(lead.failure)}{of}"]


def _raising(failure: Failure) -> str | None:
    """The exception of a failure and the place where it was raised."""
    if failure.raised is None:
        return None
    return f"{failure.raised} at {failure.source_line}" if failure.source_line else failure.raised


def failure_text(outcome: Outcome, statement: str = "", others: Sequence[Outcome] = ()) -> str:
    """Describe a failure in full: property, values, counterexample, how to reproduce it."""
    lines = [f"{outcome.status.upper()} {outcome.subject}: {outcome.invariant}"]
    if statement:
        lines.append(filled("property: ", statement))
    lines.append(textwrap.indent(outcome.reason, "  "))
    if outcome.failure is not None:
        lines += _lines_of(outcome.failure)
    lines += _also(others)
    lines += _reproducing(outcome, others)
    failure = outcome.failure
    if failure is not None and failure.by_design and not (failure.cause and failure.mistakes):
        lines.append(f"  by design? {failure.by_design}")
    return "\n".join(lines)


def _lines_of(failure: Failure) -> list[str]:
    """The calls, the case and the error of a failure."""
    lines = [f"  in the calls: {failure.program}"] if failure.program else []
    if failure.case:
        which = "smallest counterexample" if failure.smallest else "counterexample"
        replayed = ", of an earlier run, from the example database" if failure.replayed else ""
        if failure.program:  # the case gives only the numbers in them, not their sizes
            lines.append(f"  {which}: these calls in case {failure.case}{replayed}")
        else:
            lines.append(f"  {which}: {case_in_words(failure.case)}")
            lines.append(f"    case {failure.case}{replayed}")
    if failure.multiple is not None:
        lines.append(f"  error: {failure.multiple:.3g} times what is allowed")
    return lines


def _also(others: Iterable[Outcome]) -> list[str]:
    """Lines that name failures, those for the same reason together; the contract comes first."""
    names: dict[str, list[str]] = {}
    for outcome in sorted(others, key=lambda one: (one.invariant != CONTRACT, one.invariant)):
        raising = _raising(outcome.failure) if outcome.failure else first_line(outcome.reason)
        head = f"also {outcome.status}{raising and ', '}{raising or ''}: "
        if outcome.failure is not None:
            head = f"also raises {raising}: " if raising else "also failed: "
        names.setdefault(head, []).append(outcome.invariant)
    return [filled(head, ", ".join(found)) for head, found in names.items()]


def _reproducing(outcome: Outcome, others: Iterable[Outcome]) -> list[str]:
    """The script of the failure, or of another one, which is named, or else the command."""
    for one in (outcome, *others):
        if one.failure is not None and one.failure.script:
            what = "reproduce:"
            if one is not outcome:
                what = f"reproduce {one.invariant}, which failed too:"
            return [f"  {what}", textwrap.indent(one.failure.script.rstrip(), "    ")]
    return ["  reproduce:", f"    {outcome.command}"] if outcome.command else []


def first_line(text: str) -> str:
    """The first line of a text that is not empty."""
    return next((line for line in text.splitlines() if line.strip()), "")


def filled(head: str, text: str) -> str:
    """A text after a head, indented and wrapped at 100 columns."""
    return textwrap.fill(
        head + text,
        width=100,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def case_in_words(case_id: str) -> str:
    """Describe a case in words: its sizes, and everything unusual."""
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
    parts += [f"{name} {option}" for name, option in getattr(case, "variants", ())]
    return ", ".join([*parts, f"seed {case.seed}"])
