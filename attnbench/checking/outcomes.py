"""Outcomes: what one invariant said of one subject, and the report that collects them."""

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
"""Every status; only the first and ``skipped`` let a report be ok."""

_SHORT = 240
"""Characters of an object's repr that pytest shows in a failed assertion."""

CONTRACT = "keeps_the_contract"
"""The invariant that is run first: where it fails, no other may say anything."""

COMPILING = ("exported_equals_eager", "compiled_equals_eager")
"""The invariants that are run last: each compiles for seconds."""


@dataclass(frozen=True)
class Outcome:
    """What one invariant said of one subject.

    Args:
        subject: its address.
        invariant: its name.
        status: one of :data:`STATUSES`.
        reason: why it was skipped, what was violated, or how many cases of each kind were seen.
        cases: how many cases it held or failed on.
        seconds: how long it took.
        counterexample: id of the case it failed on.
        reproduce: a script in plain torch, or the command, that shows the failure again.
        error: how far off, as a multiple of what is allowed.
        diagnosis: the likely cause of all failures of the subject, at the one that shows it best.
        explained: mistakes that make just what the subject gets wrong, the likeliest first.
        seed: of the drawn cases; ``None`` draws the same every time.
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
        profile: how hard the check looked.
        seed: ``None`` if derandomised.
        notes: further remarks on the run.
        about: how subjects are called and what they follow; the first lines of the report.
    """

    outcomes: tuple[Outcome, ...]
    profile: str = "default"
    seed: int | None = None
    notes: tuple[str, ...] = field(default=())
    about: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether every outcome is passed or skipped, and at least one is passed."""
        statuses = {outcome.status for outcome in self.outcomes}
        return "passed" in statuses and statuses <= {"passed", "skipped"}

    @property
    def counts(self) -> dict[str, int]:
        """The number of outcomes of each status that occurs."""
        counter = Counter(outcome.status for outcome in self.outcomes)
        return {status: counter[status] for status in STATUSES if counter[status]}

    def of(self, *statuses: str) -> list[Outcome]:
        """The outcomes of some statuses."""
        return [outcome for outcome in self.outcomes if outcome.status in statuses]

    def to_frame(self) -> pd.DataFrame:
        """A pandas frame, one row an outcome."""
        import pandas as pd  # takes 0.5 s to import

        columns = list(Outcome.__dataclass_fields__)
        return pd.DataFrame([asdict(outcome) for outcome in self.outcomes], columns=columns)

    def to_json(self) -> str:
        """JSON text: profile, seed, counts, notes and outcomes."""
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
        """One report of several of the same profile and seed."""
        reports = list(reports)
        return cls(
            tuple(outcome for report in reports for outcome in report.outcomes),
            reports[0].profile if reports else "default",
            reports[0].seed if reports else None,
            tuple(dict.fromkeys(note for report in reports for note in report.notes)),
            tuple(dict.fromkeys(line for report in reports for line in report.about)),
        )

    def __repr__(self) -> str:
        """The counts and what is wrong first, short enough for pytest to show it whole."""
        text = f"CheckReport({self._counted()}"
        bad = self._bad()
        if bad:
            lead = next((outcome for outcome in bad if outcome.diagnosis), bad[0])
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
    """What outcomes say about the run itself, each once."""
    return tuple(dict.fromkeys(outcome.note for outcome in outcomes if outcome.note))


def finding_text(bad: Sequence[Outcome], statements: Mapping[str, str] | None = None) -> str:
    """All that is wrong with a subject: the likely cause, what shows it best, and the rest by name.

    Args:
        bad: outcomes of one subject that are neither passed nor skipped.
        statements: of the invariants, by name.
    """
    lead = next((outcome for outcome in bad if outcome.diagnosis), bad[0])
    parts = [f"{lead.subject}: {lead.diagnosis} (likely cause)"] if lead.diagnosis else []
    parts.append(failure_text(_with_script(lead, bad), (statements or {}).get(lead.invariant, "")))
    others: dict[str, list[str]] = {}
    for outcome in bad:
        if outcome is not lead:
            why = "" if outcome.status == "failed" else outcome.reason.partition("\n")[0]
            others.setdefault(f"also {outcome.status}{why and ', '}{why}: ", []).append(
                outcome.invariant
            )
    parts += [filled(head, ", ".join(names)) for head, names in others.items()]
    return "\n".join(parts)


def _with_script(lead: Outcome, bad: Sequence[Outcome]) -> Outcome:
    """The failure with a script that shows one, its own or the first that there is."""
    scripts = [o.reproduce for o in (lead, *bad) if o.reproduce and "\n" in o.reproduce]
    return replace(lead, reproduce=scripts[0]) if scripts else lead


def failure_text(outcome: Outcome, statement: str = "") -> str:
    """A failure, whole: property, values, counterexample, how to reproduce."""
    lines = [f"{outcome.status.upper()} {outcome.subject}: {outcome.invariant}"]
    if statement:
        lines.append(filled("property: ", statement))
    reason = outcome.reason.partition("\n  [")[0] if outcome.counterexample else outcome.reason
    lines.append(textwrap.indent(reason, "  "))
    if outcome.counterexample:
        which = "smallest counterexample" if outcome.shrunk else "counterexample"
        lines.append(f"  {which}: {case_in_words(outcome.counterexample)}")
        lines.append(f"    case {outcome.counterexample}")
    if outcome.error is not None:
        lines.append(f"  error: {outcome.error:.3g} times what is allowed")
    if outcome.status == "failed" and outcome.invariant != CONTRACT:
        lines.append(f'  by design? exempt={{"{outcome.invariant}": "why"}} in the spec skips it')
    if outcome.reproduce:
        lines += ["  reproduce:", textwrap.indent(outcome.reproduce.rstrip(), "    ")]
    return "\n".join(lines)


def filled(head: str, text: str) -> str:
    """A text of several words, indented and broken at 100 columns."""
    return textwrap.fill(
        head + text,
        width=100,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def case_in_words(case_id: str) -> str:
    """A case in words: its sizes, and what is unusual about it."""
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
