"""Means with their intervals over seeds."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
