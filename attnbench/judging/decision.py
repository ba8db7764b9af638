"""What the judge says of a candidate."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from attnbench.checking.outcomes import Outcome
from attnbench.judging.refusals import status_of
from attnbench.judging.turns import Row

__all__ = ["Judgement"]


@dataclass(frozen=True)
class Judgement:
    """What the judge says of one candidate.

    Args:
        target: its address.
        verdict: ``accepted``, ``refused``, ``failed`` (an invariant is violated) or
            ``inconclusive``.
        refusal: name of the refusal, a key of :data:`attnbench.judging.refusals.REFUSALS`.
        sentence: what that means, and where it was seen.
        outcomes: of the invariants.
        rows: times, one a case.
        calls, calls_right: calls with the judge's own inputs that gave an output, and those right.
        held, missing: which restrictions of the system held, and which did not, with the reason.
        seed: seed of everything that was drawn.
        seconds: that judging took.
    """

    target: str
    verdict: str
    refusal: str | None = None
    sentence: str = ""
    outcomes: tuple[Outcome, ...] = ()
    rows: tuple[Row, ...] = ()
    calls: int = 0
    calls_right: int = 0
    held: tuple[str, ...] = ()
    missing: Mapping[str, str] | None = None
    seed: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the candidate is accepted."""
        return self.verdict == "accepted"

    @property
    def statuses(self) -> list[str]:
        """Statuses as of outcomes of a check, for the exit code."""
        found = [outcome.status for outcome in self.outcomes]
        if self.refusal is not None:
            found.append(status_of(self.refusal))
        if not self.ok:
            found.append("inconclusive")
        return found

    @property
    def score(self) -> dict[str, float | None]:
        """Shares of what was right, and geometric means of the ratios over the timed cases."""
        ran = [o for o in self.outcomes if o.status != "skipped"]
        passed = [o for o in ran if o.status == "passed"]
        rows = [row for row in self.rows if row.status == "ok"] if self.ok else []
        return {
            "properties_held": len(passed) / len(ran) if ran else None,
            "calls_right": self.calls_right / self.calls if self.calls else None,
            "cases_timed": len(rows) / len(self.rows) if self.rows else None,
            "speed_against_fused": _mean([row.ratio for row in rows]),
            "speed_against_textbook": _mean([row.textbook_ratio for row in rows]),
            "roofline_share": _mean([row.roofline_share for row in rows if row.roofline_share]),
        }

    def as_data(self) -> dict[str, Any]:
        """Convert to plain data."""
        return {
            "target": self.target,
            "ok": self.ok,
            "verdict": self.verdict,
            "refusal": self.refusal,
            "sentence": self.sentence,
            "score": self.score,
            "rows": [row.as_row() for row in self.rows],
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
            "sandbox": {"held": list(self.held), "missing": dict(self.missing or {})},
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
        }

    def to_json(self) -> str:
        """Convert to JSON text."""
        return json.dumps(self.as_data(), indent=2, ensure_ascii=False)


def _mean(ratios: Sequence[float | None]) -> float | None:
    logs = [math.log(ratio) for ratio in ratios if ratio]
    return math.exp(statistics.fmean(logs)) if logs else None
