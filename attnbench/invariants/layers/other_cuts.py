"""Whether the same tokens are right when they are cut into other calls, or in another dtype."""

from __future__ import annotations

from attnbench.invariants.layers.attribution import played
from attnbench.invariants.layers.cache_programs import steps
from attnbench.invariants.layers.program_stage import FoundError, Stage, stage_of

__all__ = ["in_double", "other_cuts"]

_LONGEST = 12
"""Most tokens of a program that is cut otherwise."""

_SMALL = 1e3
"""An error of less, in units of what is allowed, may look like rounding."""


def other_cuts(stage: Stage, found: FoundError) -> str:
    """A sentence on other cuts of the same tokens; empty if the program does more than append."""
    begin, *rest = found.program
    if begin.rows or any(step.kind != "append" or step.track for step in rest):
        return ""
    cuts = [step.count for step in rest]
    total = sum(cuts)
    if not 1 < total <= _LONGEST:
        return ""
    others = [(total,), (1,) * total, (total - 1, 1), (1, total - 1), (*cuts[:-2], sum(cuts[-2:]))]
    if cuts[-1] > 1:
        others.append((*cuts[:-1], *[1] * cuts[-1]))
    told: dict[str, list[str]] = {"right": [], "wrong": []}
    for other in dict.fromkeys(others):
        if list(other) != cuts:
            right = played(stage, "split", steps(begin.count, *other)) is None
            cut = " + ".join(map(str, other)) if len(other) > 1 else f"{total} at once"
            told["right" if right else "wrong"].append(cut)
    parts = [f"as {_or(as_)} it is {how}" for how, as_ in told.items() if as_]
    return f"\n  cut {'; '.join(parts)}" if parts else ""


def _or(names: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def in_double(stage: Stage, judged: str, found: FoundError) -> str:
    """A sentence on a small error in float64; empty where that cannot be told."""
    double = "float64" in stage.subject.dtypes and stage.case.dtype != "float64"
    if not double or found.place is None or found.error is None or found.error > _SMALL:
        return ""
    again = played(
        stage_of(stage.subject, stage.case.replace(dtype="float64")), judged, found.program
    )
    if again is None:
        return "\n  in float64 the same calls are right: precision is lost on the way"
    if again.place is None:
        return ""
    gaps = [abs(a - b) for a, b in (again.values, found.values)]
    if not 0.5 < gaps[0] / gaps[1] < 2:
        return ""
    return "\n  in float64 the difference is the same, so that it is not rounding"
