"""Means with their intervals over seeds, and what papers claim about differences of them."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["MARGIN", "claimed", "interval", "learnt", "points"]

MARGIN = 0.05
"""Mean accuracies that differ by less than this count as equal."""

Run = Mapping[str, Any]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean of independent values and half of its 95 % interval (Student's t).

    Args:
        values: at least one; of one alone the interval is infinite.
    """
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.inf
    from scipy.stats import t  # takes a second to import

    factor = float(t.ppf(0.975, len(values) - 1))
    return mean, factor * statistics.stdev(values) / math.sqrt(len(values))


def learnt(run: Run) -> float:
    """The mean accuracy over a run's curve: high for what is learned soon and well."""
    points = run["curve"]
    area = sum((b - a) * (x + y) / 2 for (a, x), (b, y) in itertools.pairwise(points))
    return float(area / (points[-1][0] - points[0][0]))


def points(found: Iterable[Run]) -> list[dict[str, Any]]:
    """One row a task, subject and size: quality with its interval over seeds, and the cost."""
    groups = defaultdict(list)
    for run in found:
        if "unfit" not in run:
            groups[run["task"], run["subject"], run["size"]].append(run)
    return [
        {"task": task, "subject": subject, "size": size, "seeds": len(group)}
        | _measured("accuracy", [run["accuracy"] for run in group])
        | _measured("curve_mean", [learnt(run) for run in group])
        | {
            "step_ms": 1e3 * min(run["step_s"] for run in group),
            "parameters": group[0]["parameters"],
        }
        for (task, subject, size), group in sorted(groups.items())
    ]


def _measured(name: str, values: Sequence[float]) -> dict[str, float]:
    mean, half = interval(values)
    return {name: mean, f"{name}_half_interval": half}


def claimed(claims: Iterable[Mapping[str, Any]], found: Iterable[Run]) -> list[dict[str, Any]]:
    """What the runs say of each claim, one row a task and size that both subjects have runs of.

    The difference of ``curve_mean`` is paired by seed, since a seed has the same data for both.
    ``holds`` is ``yes``, ``no`` (the interval lies wholly on the other side) or ``open``.
    """
    groups: dict[tuple[str, str, int], dict[int, float]] = defaultdict(dict)
    for run in found:
        if "unfit" not in run:
            groups[run["task"], run["subject"], run["size"]][run["seed"]] = learnt(run)
    rows = []
    for claim in claims:
        for task in claim["tasks"]:
            for size in claim["sizes"]:
                better, worse = (groups[task, claim[side], size] for side in ("better", "worse"))
                seeds = sorted(set(better) & set(worse))
                if not seeds:
                    continue
                mean, half = interval([better[seed] - worse[seed] for seed in seeds])
                rows.append(
                    {
                        "source": claim["source"],
                        "claim": claim["statement"],
                        "task": task,
                        "size": size,
                        "seeds": len(seeds),
                        "difference": mean,
                        "half_interval": half,
                        "holds": _holds(claim["kind"], mean - half, mean + half),
                    }
                )
    return rows


def _holds(kind: str, low: float, high: float) -> str:
    if kind == "equal":
        inside = low > -MARGIN and high < MARGIN
        return "yes" if inside else "no" if low > MARGIN or high < -MARGIN else "open"
    return "yes" if low > 0 else "no" if high < 0 else "open"
