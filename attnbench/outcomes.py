"""Outcomes: what one invariant said of one subject, and the report that collects them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["STATUSES", "CheckReport", "Outcome"]

STATUSES = ("passed", "failed", "skipped", "inconclusive", "error", "crashed", "timeout")
"""Every status; only the first and ``skipped`` let a report be ok."""


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
        counterexample: id of the smallest case it failed on.
        reproduce: a script in plain torch, or the command, that shows the failure again.
        error: how far off, as a multiple of what is allowed.
        diagnosis: known bugs that fail in just this pattern.
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


@dataclass(frozen=True)
class CheckReport:
    """The outcomes of a check.

    Args:
        outcomes: one for each subject and invariant.
        profile: how hard was looked.
        seed: ``None`` if derandomised.
    """

    outcomes: tuple[Outcome, ...]
    profile: str = "default"
    seed: int | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Whether every outcome is passed or skipped, and at least one is passed."""
        statuses = {outcome.status for outcome in self.outcomes}
        return statuses <= {"passed", "skipped"}

    @property
    def counts(self) -> dict[str, int]:
        """How many outcomes there are of each status, those that occur."""
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
        """JSON text: profile, seed, counts and outcomes."""
        content: dict[str, Any] = {
            "profile": self.profile,
            "seed": self.seed,
            "ok": self.ok,
            "counts": self.counts,
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
        )

    def __str__(self) -> str:
        lines = [
            f"{o.status}: {o.subject} {o.invariant}\n  {o.reason}"
            for o in self.outcomes
            if o.status not in ("passed", "skipped")
        ]
        lines.append(", ".join(f"{count} {status}" for status, count in self.counts.items()))
        return "\n".join(lines)
