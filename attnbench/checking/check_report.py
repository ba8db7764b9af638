"""The report of a check: its outcomes, what it did not test, and both in words."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

from attnbench.cases.case import Case
from attnbench.checking.gaps import Gap
from attnbench.checking.outcomes import GOOD, KEEPS_CONTRACT, STATUSES, Failure, Outcome, lead_of
from attnbench.errors import first_line

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 3
"""Version of the JSON of reports and outcomes, which ``outcomes.schema.json`` describes."""


_MOST_GAPS = 4
"""Most gaps that are shown."""

_MOST_LINES = 25
"""Lines of a failure's description."""

_REPR_WIDTH = 240
"""Characters that pytest shows of an object's repr in a failed assertion."""


@dataclass(frozen=True, repr=False)
class CheckReport:
    """The outcomes of a check.

    Args:
        outcomes: one for each subject and invariant.
        profile: profile of the check.
        seed: seed of the drawn cases; ``None`` if derandomised.
        notes: further remarks on the run.
        about: styles of call and conventions of the subjects; the first lines of the report.
        coverage: what was not tested, the heaviest gap first; the last lines of the report.
    """

    outcomes: tuple[Outcome, ...]
    profile: str = "default"
    seed: int | None = None
    notes: tuple[str, ...] = field(default=())
    about: tuple[str, ...] = field(default=())
    coverage: tuple[Gap, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether all outcomes passed or were skipped, and at least one passed."""
        statuses = {outcome.status for outcome in self.outcomes}
        return "passed" in statuses and statuses <= {*GOOD}

    @property
    def counts(self) -> dict[str, int]:
        """The number of outcomes of each status that occurs."""
        counter = Counter(outcome.status for outcome in self.outcomes)
        return {status: counter[status] for status in STATUSES if counter[status]}

    @property
    def failures(self) -> list[Outcome]:
        """The outcomes that are neither passed nor skipped."""
        return [outcome for outcome in self.outcomes if not outcome.ok]

    @property
    def by_subject(self) -> dict[str, list[Outcome]]:
        """The outcomes of each subject, in order."""
        groups: dict[str, list[Outcome]] = {}
        for outcome in self.outcomes:
            groups.setdefault(outcome.subject, []).append(outcome)
        return groups

    def of(self, *statuses: str) -> list[Outcome]:
        """The outcomes with one of some statuses."""
        return [outcome for outcome in self.outcomes if outcome.status in statuses]

    def to_frame(self) -> pd.DataFrame:
        """Convert to a pandas frame with one row per outcome."""
        import pandas as pd  # takes 0.5 s to import

        return pd.json_normalize([outcome.to_data() for outcome in self.outcomes])

    def to_json(self) -> str:
        """JSON text, a ``report`` of ``outcomes.schema.json``, which is shipped."""
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "profile": self.profile,
            "seed": self.seed,
            "ok": self.ok,
            "counts": self.counts,
            "about": list(self.about),
            "notes": list(self.notes),
            "coverage": [asdict(gap) for gap in self.coverage],
            "outcomes": [outcome.to_data() for outcome in self.outcomes],
        }
        return json.dumps(content, indent=2, ensure_ascii=False)

    @classmethod
    def joined(cls, reports: Iterable[CheckReport]) -> CheckReport:
        """Join several reports with the same profile and seed."""
        reports = list(reports)
        return cls(
            tuple(outcome for report in reports for outcome in report.outcomes),
            reports[0].profile if reports else "default",
            reports[0].seed if reports else None,
            tuple(dict.fromkeys(note for report in reports for note in report.notes)),
            tuple(dict.fromkeys(line for report in reports for line in report.about)),
            tuple(gap for report in reports for gap in report.coverage),
        )

    def __repr__(self) -> str:
        """The counts and the first failures, short enough for pytest to show in full."""
        text = f"CheckReport({counts_text(self)}"
        if self.failures:
            lead = lead_of(self.failures)
            message = first_line(lead.reason)
            text += f"; {lead.status}: {lead.invariant} on {lead.subject}: {message}"
        end = ") str(report) has the rest" if self.failures else ")"
        return textwrap.shorten(text, _REPR_WIDTH - len(end), placeholder=" ...") + end

    def __str__(self) -> str:
        """The facts about the subjects, each finding in full, the counts and the notes."""
        lines = list(self.about)
        for outcomes in self.by_subject.values():
            if failures := [outcome for outcome in outcomes if not outcome.ok]:
                lines.append(finding_text(failures) + "\n")
        return "\n".join([*lines, counts_text(self), *self.notes, *gap_lines(self.coverage)])


def gap_lines(gaps: Sequence[Gap]) -> list[str]:
    """The heaviest gaps in words."""
    remedies = [gap.remedy and f"; declare {gap.remedy}" for gap in gaps]
    lines = [
        f"Not looked at, {gap.subject}: {gap.what}{remedy}"
        for gap, remedy in zip(gaps, remedies, strict=True)
    ]
    surplus = len(lines) - _MOST_GAPS
    return lines[:_MOST_GAPS] + [f"and {surplus} more, which --json lists as coverage"] * (
        surplus > 0
    )


def counts_text(report: CheckReport) -> str:
    """How many outcomes there are of each status."""
    counts = ", ".join(f"{count} {status}" for status, count in report.counts.items())
    return counts or "nothing checked"


def finding_text(failures: Sequence[Outcome], statements: Mapping[str, str] | None = None) -> str:
    """Describe the failures of a subject: the most specific one in full, the rest by name."""
    lead = lead_of(failures)
    others = [outcome for outcome in failures if outcome is not lead]
    text = failure_text(lead, (statements or {}).get(lead.invariant, ""), others)
    return "\n".join([*_heading(lead, failures), text])


def _heading(lead: Outcome, outcomes: Sequence[Outcome]) -> list[str]:
    """A line about an exception, and how many checks it was raised in."""
    if lead.failure is None or lead.failure.raised is None:
        return []
    failures = [outcome.failure for outcome in outcomes if outcome.failure is not None]
    count = sum(_raising(failure) == _raising(lead.failure) for failure in failures)
    share = f" in {count} of the {len(failures)} checks that failed" if len(failures) > 1 else ""
    return [f"{lead.subject}: it raises {_raising(lead.failure)}{share}"]


def _raising(failure: Failure) -> str | None:
    """The exception of a failure and the place where it was raised."""
    if failure.raised is None:
        return None
    return f"{failure.raised} at {failure.source_line}" if failure.source_line else failure.raised


def failure_text(outcome: Outcome, statement: str = "", others: Sequence[Outcome] = ()) -> str:
    """Describe a failure: property, values, what explains it, counterexample, how to reproduce it.

    A script that would make it longer than a screen gives way to a command.
    """
    lines = [f"{outcome.status.upper()} {outcome.subject}: {outcome.invariant}"]
    if statement:
        lines.append(filled("property: ", statement))
    failure = outcome.failure
    if failure is not None and failure.hint and not (failure.is_nan_alone or failure.raised):
        lines.append(filled("usually: ", failure.hint))
    lines.append(textwrap.indent(outcome.reason, "  "))
    if failure is not None:
        lines += _lines_of(failure)
    lines += _other_failures(others)
    meant = [f"  by design? {failure.by_design}"] if failure and failure.by_design else []
    room = _MOST_LINES - sum(text.count("\n") + 1 for text in (*lines, *meant))
    return "\n".join([*lines, *_reproduction(outcome, others, room), *meant])


def _lines_of(failure: Failure) -> list[str]:
    """What is wrong, where alone, what explains it, the calls, the case and the error."""
    lines = [filled("wrong: ", failure.region)] if failure.region else []
    lines += [filled("it fails ", failure.where)] if failure.where else []
    for clue in failure.clues:
        text = f"try: {clue.text}" if clue.kind == "try" else clue.text
        lines.append(textwrap.indent(text, "  "))
    lines += [f"  in the calls: {failure.program}"] if failure.program else []
    if failure.case:
        title = "smallest counterexample" if failure.smallest else "counterexample"
        replayed = ", from the example database" if failure.replayed else ""
        if failure.program:  # the case gives only the numbers in them, not their sizes
            lines.append(f"  {title}: these calls in case {failure.case}{replayed}")
        else:
            lines.append(f"  {title}: {case_in_words(failure.case)}")
            lines.append(f"    case {failure.case}{replayed}")
    numbers = isinstance(failure.got, float) and isinstance(failure.expected, float)
    if not numbers and failure.multiple is not None and isfinite(failure.multiple):
        lines.append(f"  error: {failure.multiple:.3g} times what is allowed")
    return lines


def _other_failures(others: Iterable[Outcome]) -> list[str]:
    """Lines that name failures, those for the same reason together; the contract comes first."""
    names: dict[str, list[str]] = {}
    for outcome in sorted(others, key=lambda o: (o.invariant != KEEPS_CONTRACT, o.invariant)):
        raising = _raising(outcome.failure) if outcome.failure else first_line(outcome.reason)
        head = f"also {outcome.status}{raising and ', '}{raising or ''}: "
        if outcome.failure is not None:
            head = f"also raises {raising}: " if raising else "also failed: "
        names.setdefault(head, []).append(outcome.invariant)
    return [filled(head, ", ".join(invariants)) for head, invariants in names.items()]


def _reproduction(outcome: Outcome, others: Iterable[Outcome], room: int) -> list[str]:
    """The script of the failure, or of another one, which is named, or else the command."""
    for source in (outcome, *others):
        script = source.failure.script if source.failure is not None else None
        if script and script.rstrip().count("\n") + 2 <= room:
            title = "reproduce:"
            if source is not outcome:
                title = f"reproduce {source.invariant}, which failed too:"
            return [f"  {title}", textwrap.indent(script.rstrip(), "    ")]
    return ["  reproduce:", f"    {outcome.command}"] if outcome.command else []


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
    default = Case()
    if case.layout != default.layout:
        parts.append(f"layout {case.layout}")
    if case.regime != default.regime:
        parts.append(f"values {case.regime}")
    if case.device != default.device:
        parts.append(case.device)
    varied = ", ".join(f"{name}={option}" for name, option in case.variants)
    text = ", ".join([*parts, f"seed {case.seed}"])
    return f"{text} (the property varies {varied})" if varied else text
