"""Tables of verdicts on sides measured in pairs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnbench.benchmark.comparing.duel import Row
    from attnbench.benchmark.comparing.verdict import Verdict

LEGEND = """\
change: B's time over A's, minus 1 (+ is slower); from, to: its bounds, for all rows at once.
slower, faster: 0 lies outside the bounds, and the change is over {margin}.
slightly slower, slightly faster: 0 lies outside the bounds, and the change is up to {margin}.
same: the bounds contain 0, and lie within ±{margin}.
would see: the smallest change that 95 of 100 such comparisons would call slower or faster."""


def table_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of plain data as the table shows them."""
    return [_cells(row) for row in rows]


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    bounded = row["high"] is not None  # not without enough pairs
    return {
        "subject": row["subject"],
        "case": row["workload"] or row["case"],
        "change": _share(row["effect"]),
        "from": _share(row["low"] if bounded else None),
        "to": _share(row["high"]),
        "would see": _share(row["visible"]),
        "spread": _share(row["spread"]).lstrip("+"),
        "pairs": str(row["pairs"]),
        "verdict": row["verdict"],
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
        "differs": row.differs,
        "reason": row.reason,
    }


def _numbers(verdict: Verdict | None, *names: str) -> dict[str, float | None]:
    """Fields of a verdict for JSON, which has neither NaN nor infinities."""
    values = {name: getattr(verdict, name, math.nan) for name in names}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def counts_line(verdicts: Iterable[str]) -> str:
    """How often each verdict was given, as a line."""
    from attnbench.benchmark.comparing.verdict import VERDICTS

    counts = Counter(verdicts)
    return ", ".join(
        f"{counts[name]} {name}" for name in VERDICTS if counts[name] or " " not in name
    )
