"""Tables of verdicts: of sides measured in pairs, and of recorded runs."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnbench.benchmark.comparing.duel import Row
    from attnbench.benchmark.comparing.recorded_comparison import Compared
    from attnbench.benchmark.comparing.verdict import Verdict

_CONSTANTS = ("dtype", "device", "mask", "direction", "cache")

LEGEND = """\
change: B's time over A's, minus 1 (+ is slower); from, to: its bounds, for all rows at once.
slower, faster: 0 lies outside the bounds, and the change is over {margin}.
slightly slower, slightly faster: 0 lies outside the bounds, and the change is up to {margin}.
same: the bounds contain 0, and lie within ±{margin}.
would see: the smallest change that 95 of 100 such comparisons would call slower or faster."""


def table_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of plain data as the table shows them, without what is the same in every row."""
    table = [_cells(row) for row in rows]
    constants = {name for name in _CONSTANTS if len({row.get(name) for row in table}) == 1}
    return [{k: v for k, v in row.items() if k not in constants} for row in table]


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    bounded = row["high"] is not None  # not without enough pairs
    times = {side: row[f"{side.lower()}_time_s"] for side in "AB" if "alternated" in row}
    return {
        "subject": row["subject"],
        "case": row["workload"] or row["case"],
        **{name: row[name] for name in _CONSTANTS if name in row},
        **{f"{side} ms": "-" if s is None else f"{s * 1e3:.4g}" for side, s in times.items()},
        "change": _share(row["effect"]),
        "from": _share(row["low"] if bounded else None),
        "to": _share(row["high"]),
        "would see": _share(row["visible"]),
        **({"spread": _share(row["spread"]).lstrip("+")} if "spread" in row else {}),
        **{name: str(row[name]).strip("[]") for name in ("pairs", "processes") if name in row},
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


def recorded_json(row: Compared) -> dict[str, Any]:
    """A row of recorded runs as plain data."""
    example, sides = row.example, (("a", row.sides.a_s), ("b", row.sides.b_s))
    return {
        "subject": example.subject,
        "case": example.case,
        "workload": example.workload,
        **{name: getattr(example, name) for name in _CONSTANTS},
        "contract": example.contract,
        "verdict": row.verdict.verdict,
        **_numbers(row.verdict, "effect", "low", "high", "visible"),
        **{f"{name}_time_s": statistics.geometric_mean(s) if s else None for name, s in sides},
        "processes": [len(row.sides.a_s), len(row.sides.b_s)],
        "alternated": row.sides.alternated,
        "reason": row.verdict.reason,
    }
