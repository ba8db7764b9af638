"""Outcomes of invariants on subjects, and the report that collects them."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from attnbench.cases.case import Case

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CALLS",
    "COMPILING",
    "CONTRACT",
    "STATUSES",
    "CheckReport",
    "Outcome",
    "case_in_words",
    "failure_text",
    "filled",
    "finding_text",
    "notes_of",
]

STATUSES = ("passed", "failed", "skipped", "inconclusive", "error", "crashed", "timeout")
"""All statuses; a report is ok if it has only ``passed`` and ``skipped``."""

_SHORT = 240
"""Characters that pytest shows of an object's repr in a failed assertion."""

CONTRACT = "keeps_the_contract"
"""The invariant that runs first; if it fails, others may be meaningless."""

CALLS = "\n  in the calls: "
"""What precedes, in the reason of a failure, the calls that a cache was given."""

COMPILING = ("exported_equals_eager", "compiled_equals_eager")
"""The invariants that run last, since each compiles for seconds."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of one invariant on one subject.

    Args:
        subject: address of the subject.
        invariant: name of the invariant.
        status: one of :data:`STATUSES`.
        reason: why it was skipped, what was violated, or how many cases of each kind were seen.
        cases: number of cases on which it held or failed.
        seconds: seconds that it took.
        counterexample: id of the case at which it failed.
        reproduce: a script in plain torch, or a command, that reproduces the failure.
        error: the error as a multiple of the allowed error.
        diagnosis: likely cause of all failures of the subject, in the outcome that shows it best.
        explained: mistakes that reproduce the wrong outputs, the likeliest first.
        seed: seed of the drawn cases; ``None`` draws the same cases every time.
        shrunk: whether the counterexample is the smallest that was found.
        note: a line about the run itself, such as that its failures could not be kept.
    """

    subject: str
    invariant: str
    status: str
    reason: str = ""
    cases: int = 0
    seconds: float = 0.0
    counterexample: str | None = None
    reproduce: str | None = None
    error: float | None = None
    diagnosis: str | None = None
    explained: tuple[str, ...] = ()
    seed: int | None = None
    shrunk: bool = False
    note: str = ""


@dataclass(frozen=True, repr=False)
class CheckReport:
    """The outcomes of a check.

    Args:
        outcomes: one for each subject and invariant.
        profile: profile of the check.
        seed: seed of the drawn cases; ``None`` if derandomised.
        notes: further remarks on the run.
        about: styles of call and conventions of the subjects; the first lines of the report.
    """

    outcomes: tuple[Outcome, ...]
    profile: str = "default"
    seed: int | None = None
    notes: tuple[str, ...] = field(default=())
    about: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether all outcomes passed or were skipped, and at least one passed."""
        statuses = {outcome.status for outcome in self.outcomes}
        return "passed" in statuses and statuses <= {"passed", "skipped"}

    @property
    def counts(self) -> dict[str, int]:
        """The number of outcomes of each status that occurs."""
        counter = Counter(outcome.status for outcome in self.outcomes)
        return {status: counter[status] for status in STATUSES if counter[status]}

    def of(self, *statuses: str) -> list[Outcome]:
        """The outcomes with one of some statuses."""
        return [outcome for outcome in self.outcomes if outcome.status in statuses]

    def to_frame(self) -> pd.DataFrame:
        """Convert to a pandas frame with one row per outcome."""
        import pandas as pd  # takes 0.5 s to import

        columns = list(Outcome.__dataclass_fields__)
        return pd.DataFrame([asdict(outcome) for outcome in self.outcomes], columns=columns)

    def to_json(self) -> str:
        """Convert to JSON text with profile, seed, counts, notes and outcomes."""
        content: dict[str, Any] = {
            "profile": self.profile,
            "seed": self.seed,
            "ok": self.ok,
            "counts": self.counts,
            "about": list(self.about),
            "notes": list(self.notes),
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
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
        )

    def __repr__(self) -> str:
        """The counts and the first failures, short enough for pytest to show in full."""
        text = f"CheckReport({self._counted()}"
        bad = self._bad()
        if bad:
            lead = _lead(bad)
            told = lead.diagnosis or lead.reason.partition("\n")[0]
            text += f"; {lead.status}: {lead.invariant} on {lead.subject}: {told}"
        end = ") str(report) has the rest" if bad else ")"
        return textwrap.shorten(text, _SHORT - len(end), placeholder=" ...") + end

    def __str__(self) -> str:
        lines = list(self.about)
        for subject in dict.fromkeys(outcome.subject for outcome in self._bad()):
            lines.append(finding_text([o for o in self._bad() if o.subject == subject]) + "\n")
        return "\n".join([*lines, self._counted(), *self.notes])

    def _bad(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.status not in ("passed", "skipped")]

    def _counted(self) -> str:
        counts = ", ".join(f"{count} {status}" for status, count in self.counts.items())
        return counts or "nothing checked"


def notes_of(outcomes: Iterable[Outcome]) -> tuple[str, ...]:
    """The notes of outcomes, each once."""
    return tuple(dict.fromkeys(outcome.note for outcome in outcomes if outcome.note))


def finding_text(bad: Sequence[Outcome], statements: Mapping[str, str] | None = None) -> str:
    """Describe the failures of a subject: the likely cause, the best failure, the rest by name.

    Args:
        bad: outcomes of one subject that are neither passed nor skipped.
        statements: statements of the invariants by name.
    """
    lead = _lead(bad)
    parts = [f"{lead.subject}: {lead.diagnosis} (likely cause)"] if lead.diagnosis else []
    shown, statement = _with_script(lead, bad), (statements or {}).get(lead.invariant, "")
    told, others = replace(lead, reproduce=shown.reproduce), [o for o in bad if o is not lead]
    return "\n".join([*parts, failure_text(told, statement, shown.invariant, others)])


def _lead(bad: Sequence[Outcome]) -> Outcome:
    """The failure to describe: that with the likely cause, or else the most specific one."""
    from attnbench.checking.evidence.diagnosis import most_specific  # imports this module

    return next((outcome for outcome in bad if outcome.diagnosis), None) or most_specific(bad)


def _with_script(lead: Outcome, bad: Sequence[Outcome]) -> Outcome:
    """The failure to reproduce: the one described, or the first other one with a script."""
    return next((o for o in (lead, *bad) if o.reproduce and "\n" in o.reproduce), lead)


def failure_text(
    outcome: Outcome, statement: str = "", reproduced: str = "", others: Sequence[Outcome] = ()
) -> str:
    """Describe a failure in full: property, values, counterexample, how to reproduce it.

    Args:
        outcome: the failure.
        statement: statement of its invariant.
        reproduced: the invariant whose failure ``outcome.reproduce`` shows, if it is another one.
        others: other failures of the subject, which are named.
    """
    lines = [f"{outcome.status.upper()} {outcome.subject}: {outcome.invariant}"]
    if statement:
        lines.append(filled("property: ", statement))
    reason = outcome.reason.partition("\n  [")[0] if outcome.counterexample else outcome.reason
    lines.append(textwrap.indent(reason, "  "))
    if outcome.counterexample:
        which = "smallest counterexample" if outcome.shrunk else "counterexample"
        if CALLS in reason:  # the case gives only the numbers in them, not their sizes
            lines.append(f"  {which}: these calls in case {outcome.counterexample}")
        else:
            lines.append(f"  {which}: {case_in_words(outcome.counterexample)}")
            lines.append(f"    case {outcome.counterexample}")
    if outcome.error is not None:
        lines.append(f"  error: {outcome.error:.3g} times what is allowed")
    lines += _also(others)
    if outcome.reproduce:
        another = reproduced and reproduced != outcome.invariant
        what = f"reproduce {reproduced}, which failed too:" if another else "reproduce:"
        lines += [f"  {what}", textwrap.indent(outcome.reproduce.rstrip(), "    ")]
    if outcome.status == "failed" and outcome.invariant != CONTRACT:
        lines.append(f'  by design? exempt={{"{outcome.invariant}": "why"}} in the spec skips it')
    return "\n".join(lines)


def _also(others: Iterable[Outcome]) -> list[str]:
    """Lines that name failures, those for the same reason together; the contract comes first."""
    names: dict[str, list[str]] = {}
    for outcome in sorted(others, key=lambda one: (one.invariant != CONTRACT, one.invariant)):
        why = "" if outcome.status == "failed" else outcome.reason.partition("\n")[0]
        names.setdefault(f"also {outcome.status}{why and ', '}{why}: ", []).append(
            outcome.invariant
        )
    return [filled(head, ", ".join(found)) for head, found in names.items()]


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
