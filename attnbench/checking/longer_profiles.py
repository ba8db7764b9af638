"""What the default profile would add to a quick one, and its approximate time on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.checking.outcomes import Outcome
from attnbench.checking.profiles import PROFILES

__all__ = ["default_profile", "default_seconds"]

_DRAWING = 6.0
"""Time of the profile default over that of quick, for invariants that compile nothing.

Measured on four built-in subjects.
"""

_LONGER = {"compiled_equals_eager": 44.0, "exported_equals_eager": 2.0}
"""The same for invariants that compile: quick runs no generated code, and one case instead of two.

Measured on two cores with an empty compiler cache, over six built-in subjects.
"""


def default_seconds(quick: Sequence[Outcome], elapsed_s: float, *, jobs: int) -> float:
    """Estimate the seconds of the default profile for the same subjects and invariants.

    Args:
        quick: outcomes of the quick profile.
        elapsed_s: seconds that it took, including the start of processes.
        jobs: number of processes.
    """
    checked = sum(outcome.seconds for outcome in quick)
    longer = [o.seconds * _LONGER.get(o.invariant, _DRAWING) for o in quick]
    start = max(0.0, elapsed_s - checked / jobs)
    return start + max(sum(longer) / jobs, max(longer, default=0.0))


def default_profile(
    quick: Sequence[Outcome], elapsed_s: float, *, jobs: int, left_out: int = 0
) -> str:
    """A sentence about the default profile.

    Args:
        quick, elapsed_s, jobs: as for :func:`default_seconds`.
        left_out: number of subjects with options that quick leaves out.
    """
    seconds = default_seconds(quick, elapsed_s, jobs=jobs)
    subjects = len({outcome.subject for outcome in quick})
    compiles = any(o.invariant in _LONGER and o.status != "skipped" for o in quick)
    does = [f"draws {PROFILES['default'].drawn} cases instead of {PROFILES['quick'].drawn}"]
    if compiles:
        does.append("compiles to machine code")
    if left_out:
        does.append(f"checks {left_out} more subjects, which have options")
    listed = ", ".join(does[:-1]) + " and " + does[-1] if len(does) > 1 else does[0]
    takes = _rounded(seconds * (1 + left_out / max(1, subjects)))
    return f"--profile default {listed}; that takes about {takes} here."


def _rounded(seconds: float) -> str:
    """A time rounded to the accuracy of an estimate."""
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    return f"{round(seconds / 60)} min"
