"""The report of a check: its outcomes, and what it did not test."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from attnbench.checking import report_text
from attnbench.checking.gaps import Gap
from attnbench.checking.outcomes import GOOD, STATUSES, Outcome
from attnbench.checking.report_html import report_html
from attnbench.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 3
"""Version of the JSON of reports and outcomes, which ``outcomes.schema.json`` describes."""


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
    def from_json(cls, text: str) -> CheckReport:
        """Read a report from the text of :meth:`to_json`.

        Raises:
            UsageError: it is not JSON of a report, or of another version of its schema.
        """
        try:
            content = json.loads(text)
            version = content.get("schema")
        except (ValueError, AttributeError) as error:
            raise UsageError(f"this is no JSON of a report: {error}") from None
        if version != SCHEMA:
            raise UsageError(
                f"this report has version {version} of the schema, but this attnbench reads "
                f"version {SCHEMA}: run the check again, or use the attnbench that wrote it"
            )
        values = {entry.name: content[entry.name] for entry in fields(cls)}
        rows = tuple(Outcome.from_data(row) for row in content["outcomes"])
        lines = {name: tuple(content[name]) for name in ("notes", "about")}
        gaps = tuple(Gap(**row) for row in content["coverage"])
        return cls(**{**values, **lines, "outcomes": rows, "coverage": gaps})

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
        return report_text.report_in_short(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return report_html(self)

    def __str__(self) -> str:
        return report_text.report_in_full(self)
