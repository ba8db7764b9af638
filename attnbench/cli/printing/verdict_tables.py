"""Tables of verdicts: of sides measured in pairs, and of recorded runs."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any

from attnbench.benchmark.comparing.comparison import Compared
from attnbench.benchmark.comparing.duel import Row
from attnbench.benchmark.comparing.verdict import VERDICTS, Verdict

_CONSTANTS = ("dtype", "device", "mask", "direction", "cache")

LEGEND = """\
change: B's time over A's, minus 1 (+ is slower); from, to: its bounds, for all rows at once.
slower, faster: 0 lies outside the bounds, and the change is over {margin}.
slightly slower, slightly faster: 0 lies outside the bounds, and the change is up to {margin}.
same: the bounds contain 0, and lie within ±{margin}.
would see: the smallest change that 95 of 100 such comparisons would call slower or faster."""


def duel_row(row: Row) -> dict[str, Any]:
    """A row as the table shows it; without enough pairs there is no interval."""
    verdict = row.judged
    return {
        "subject": row.subject,
        "case": row.case.workload or row.case.id,
        **_change_cells(verdict),
        "spread": _share(verdict.spread if verdict else math.nan).lstrip("+"),
        "pairs": str(len(row.values)),
        "verdict": row.verdict,
    }


def duel_json(row: Row) -> dict[str, Any]:
    """A row measured in pairs as plain data."""
    return {
        "subject": row.subject,
        "case": row.case.id,
        "workload": row.case.workload,
        "verdict": row.verdict,
        **_numbers(row.judged, "effect", "low", "high", "visible", "spread"),
        "pairs": len(row.values),
        "values": [row.values[number] for number in sorted(row.values)],
        "timed": not row.refused,
        "reason": row.reason,
    }


def _numbers(verdict: Verdict | None, *names: str) -> dict[str, float | None]:
    """Fields of a verdict for JSON, which has neither NaN nor infinities."""
    values = {name: getattr(verdict, name, math.nan) for name in names}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _change_cells(verdict: Verdict | None) -> dict[str, str]:
    """The change, its bounds if there are enough pairs, and the smallest detectable change."""
    if verdict is None:
        return dict.fromkeys(("change", "from", "to", "would see"), "-")
    bounded = math.isfinite(verdict.high)
    return {
        "change": _share(verdict.effect),
        "from": _share(verdict.low) if bounded else "-",
        "to": _share(verdict.high) if bounded else "-",
        "would see": _share(verdict.visible),
    }


def _share(value: float) -> str:
    return f"{value:+.1%}" if math.isfinite(value) else "-"


def counts_line(verdicts: Iterable[str]) -> str:
    """How often each verdict was given, as a line."""
    counts = Counter(verdicts)
    return ", ".join(
        f"{counts[name]} {name}" for name in VERDICTS if counts[name] or " " not in name
    )


def recorded_row(row: Compared) -> dict[str, Any]:
    """A row of recorded runs as the table shows it."""
    example = row.example
    return {
        "subject": example.subject,
        "case": example.workload or example.case,
        **{name: getattr(example, name) for name in _CONSTANTS},
        **{f"{name} ms": "-" if s is None else f"{s * 1e3:.4g}" for name, s in _means(row)},
        "processes": f"{len(row.sides.a_s)}, {len(row.sides.b_s)}",
        **_change_cells(row.verdict),
        "verdict": row.verdict.verdict,
    }


def without_constants(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without the columns of the case that are the same in all rows."""
    constants = {name for name in _CONSTANTS if len({row[name] for row in rows}) == 1}
    return [{k: v for k, v in row.items() if k not in constants} for row in rows]


def _means(row: Compared) -> list[tuple[str, float | None]]:
    """The geometric mean of the times of A and of B, in seconds."""
    sides = zip("AB", (row.sides.a_s, row.sides.b_s), strict=True)
    return [(name, statistics.geometric_mean(s) if s else None) for name, s in sides]


def recorded_json(row: Compared) -> dict[str, Any]:
    """A row of recorded runs as plain data."""
    example = row.example
    return {
        "subject": example.subject,
        "case": example.case,
        "workload": example.workload,
        "contract": example.contract,
        "verdict": row.verdict.verdict,
        **_numbers(row.verdict, "effect", "low", "high"),
        "would_see": _numbers(row.verdict, "visible")["visible"],
        **{f"{name.lower()}_time_s": mean for name, mean in _means(row)},
        "processes": [len(row.sides.a_s), len(row.sides.b_s)],
        "alternated": row.sides.alternated,
        "reason": row.verdict.reason,
    }
