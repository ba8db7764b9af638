"""What the judge says of a candidate: refusals, times, and the verdict."""

from __future__ import annotations

import json
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attnbench import Outcome
from attnbench.commands import printable
from attnbench.errors import AttnbenchError

REFUSALS: Mapping[str, Sequence[str]] = tomllib.loads(
    Path(__file__).with_name("refusals.toml").read_text()
)
"""The status, as of an outcome of a check, and the sentence of each refusal, by its name."""


KEPT_UNTIMED = ("unsupported", "waits")
"""Statuses of rows by which a candidate could leave out what it is slow at: it is not ranked."""


class RefusedError(AttnbenchError):
    """A candidate is refused.

    Args:
        name: a key of :data:`REFUSALS`.
        detail: what was seen, and where.
    """

    def __init__(self, name: str, detail: str) -> None:
        self.status, sentence = REFUSALS[name]
        self.name, self.detail = name, plain_text(detail).strip()
        super().__init__(f"{sentence}: {self.detail}" if detail else sentence)


@dataclass(frozen=True)
class Row:
    """The times of one case, in seconds, and ratios to torch's fused attention.

    Args:
        case: id of the case.
        status: ``ok``, ``unsupported``, ``too_short`` (no longer than messages take) or ``waits``
            (longer than it computes). Only ``ok`` is scored; see :data:`KEPT_UNTIMED`.
        time_s: of a call of the candidate.
        wait_s: in which it neither computed nor waited for a core, above that of fused attention.
        fused_s: of torch's fused attention.
        overhead_s: of an empty call, already taken off.
        ratio: fused over candidate: above 1, the candidate is faster.
        ratio_low, ratio_high: its 95 % interval.
        blocks: number of blocks.
        reason: why it is not scored.
    """

    case: str
    status: str
    time_s: float | None = None
    wait_s: float | None = None
    fused_s: float | None = None
    overhead_s: float | None = None
    ratio: float | None = None
    ratio_low: float | None = None
    ratio_high: float | None = None
    blocks: int = 0
    reason: str = ""


@dataclass
class Judgement:
    """What the judge says of one candidate.

    Args:
        target: its address.
        verdict: ``accepted``, ``refused``, ``failed`` (an invariant is violated) or
            ``inconclusive``.
        refused: why it was refused.
        outcomes: of the invariants.
        rows: times, one a case.
        calls, calls_right: calls with the judge's own inputs that gave an output, and those right.
        calls_whole: right ones of which all rows were compared, or of large ones many rows.
        untried: what was not tried, by name.
        held, missing: which restrictions of the system held, and which did not, with the reason.
        seed: seed of everything that was drawn.
        seconds: that judging took.
    """

    target: str
    verdict: str = "inconclusive"
    refused: RefusedError | None = None
    outcomes: list[Outcome] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    calls: int = 0
    calls_right: int = 0
    calls_whole: int = 0
    untried: list[str] = field(default_factory=list)
    held: Sequence[str] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the candidate is accepted."""
        return self.verdict == "accepted"

    @property
    def refusal(self) -> str | None:
        """The name of the refusal, a key of :data:`REFUSALS`."""
        return None if self.refused is None else self.refused.name

    @property
    def sentence(self) -> str:
        """What the refusal means, and where it was seen."""
        return "" if self.refused is None else str(self.refused)

    @property
    def statuses(self) -> list[str]:
        """Statuses as of outcomes of a check, for the exit code."""
        found = [outcome.status for outcome in self.outcomes]
        if self.refused is not None:
            found.append(self.refused.status)
        if not self.ok:
            found.append("inconclusive")
        return found

    @property
    def unranked(self) -> str:
        """Why it has no speeds although it is accepted: the cases that it kept from being timed."""
        kept = [row for row in self.rows if row.status in KEPT_UNTIMED]
        return "; ".join(f"{row.status} at {row.case}: {row.reason}" for row in kept)

    @property
    def score(self) -> dict[str, float | None]:
        """Shares of what was right, and the geometric mean of the ratios over the timed cases."""
        ran = [o for o in self.outcomes if o.status != "skipped"]
        passed = [o for o in ran if o.status == "passed"]
        rows = [row for row in self.rows if row.status == "ok" and self.ok and not self.unranked]
        ratios = [row.ratio for row in rows if row.ratio]
        return {
            "properties_held": len(passed) / len(ran) if ran else None,
            "calls_right": self.calls_right / self.calls if self.calls else None,
            "cases_timed": len(rows) / len(self.rows) if self.rows else None,
            "speed_against_fused": statistics.geometric_mean(ratios) if ratios else None,
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
            "unranked": self.unranked,
            "rows": [asdict(row) for row in self.rows],
            "calls": [self.calls, self.calls_right, self.calls_whole],
            "outcomes": [asdict(outcome) for outcome in self.outcomes],
            "untried": self.untried,
            "sandbox": {"held": list(self.held), "missing": dict(self.missing)},
            "seed": self.seed,
            "seconds": round(self.seconds, 3),
        }

    def to_json(self) -> str:
        """Convert to JSON text."""
        return json.dumps(self.as_data(), indent=2, ensure_ascii=False)


def plain_text(thing: object) -> str:
    """What a candidate says, in one line without anything that a terminal or a file acts on."""
    return printable(str(thing)[:4000]).replace("\n", " ")
