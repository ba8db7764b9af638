"""What ``compare`` shows: a table of verdicts on sides measured in pairs, and what it means."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnbench.timing import busy_cores
from attnbench_plugins.comparing.duel import Duel, Row
from attnbench_plugins.comparing.verdict import VERDICTS

_LEGEND = """\
change: B's time over A's, minus 1 (+ is slower); from, to: its bounds, for all rows at once.
slower, faster: 0 lies outside the bounds, and the change is over {margin}.
slightly slower, slightly faster: 0 lies outside the bounds, and the change is up to {margin}.
same: the bounds contain 0, and lie within ±{margin}.
would see: the smallest change that 95 of 100 such comparisons would call slower or faster.
spread: standard deviation of a pair."""


@dataclass(frozen=True, repr=False)
class Verdicts:
    """Whether B is faster or slower than A; shown as a table and what it means.

    Args:
        data: what ``attnbench compare --json`` prints: ``a``, ``b``, ``margin``, ``notes``, and
            ``rows`` with ``subject``, ``case``, ``verdict``, ``effect``, ``low`` and ``high``.
        parts: the lines and the tables that are shown.
    """

    data: Any
    parts: Sequence[str | Sequence[Mapping[str, Any]]]

    def __repr__(self) -> str:
        return "\n".join(p if isinstance(p, str) else _shown(p) for p in self.parts)


def _shown(rows: Sequence[Mapping[str, Any]]) -> str:
    import pandas as pd

    return str(pd.DataFrame(rows).set_index("subject").to_string())


def compared(duel: Duel, *, interrupted: bool) -> Verdicts:
    """What was measured, with the verdicts so far."""
    data = {
        **dict(zip("ab", duel.names, strict=True)),
        **{name: getattr(duel, name) for name in ("margin", "looks", "pairs", "seconds", "load")},
        "interrupted": interrupted,
        "rows": [duel_json(row) for row in duel.rows],
        "notes": list(duel.notes),
    }
    lines = _lines(duel) if duel.rows else []
    lines += [f"Note: {note}" for note in duel.notes]
    if interrupted:
        lines.append(f"Interrupted after {duel.pairs} pairs: undecided rows stay ambiguous.")
    table = [[cells(row) for row in data["rows"]]] if duel.rows else []
    return Verdicts(data, ["A: {}\nB: {}".format(*duel.names), *table, "\n".join(lines)])


def cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """The cells of a row of plain data."""
    bounded = row["high"] is not None  # not without enough pairs
    return {
        "subject": row["subject"],
        "case": row["workload"] or row["case"],
        "change": _share(row["effect"]),
        "from": _share(row["low"] if bounded else None),
        "to": _share(row["high"]),
        "would see": _share(row["visible"]),
        "spread": _share(row["spread"]).lstrip("+"),
        "pairs": row["pairs"],
        "verdict": row["verdict"],
    }


def duel_json(row: Row) -> dict[str, Any]:
    """A row measured in pairs as plain data; an unknown number is ``None``."""
    numbers = {
        name: getattr(row.judged, name) for name in ("effect", "low", "high", "visible", "spread")
    }
    return {
        "subject": row.subject,
        "case": row.case.id,
        "workload": row.case.workload,
        "verdict": row.verdict,
        **{name: value if math.isfinite(value) else None for name, value in numbers.items()},
        "pairs": len(row.values),
        "values": [row.values[number] for number in sorted(row.values)],
        "timed": not row.refused,
        "differs": row.differs,
        "reason": row.reason,
    }


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def _lines(duel: Duel) -> list[str]:
    open_rows = [row for row in duel.rows if row.refused or not row.decided]
    reasons = Counter(row.reason for row in open_rows if row.reason)
    lines = [
        f"{count} {'row' if count == 1 else 'rows'}: {reason}." for reason, count in reasons.items()
    ]
    counts = Counter(row.verdict for row in duel.rows)
    summary = ", ".join(
        f"{counts[name]} {name}" for name in VERDICTS if counts[name] or " " not in name
    )
    if duel.short and counts["ambiguous"]:
        summary += " (a larger --budget decides more)"
    shares = ", ".join(f"{share:.1%} at {pairs}" for pairs, share in duel.looks.items())
    return [
        *lines,
        f"{summary}.",
        _LEGEND.format(margin=f"{100 * duel.margin:g} %"),
        f"Of tables in which nothing had changed, {sum(duel.looks.values()):.1%} would call a row "
        f"slower or faster ({shares} pairs).",
        f"{duel.pairs} pairs in {duel.seconds:.0f} s; other processes kept "
        f"{busy_cores(duel.load)}.",
    ]
