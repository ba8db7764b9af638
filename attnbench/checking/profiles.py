"""Profiles: the effort that a run makes to find counterexamples."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnbench.checking.hypothesis_engine import Failures


@dataclass(frozen=True)
class Profile:
    """The effort of a check.

    Args:
        name: name of the profile.
        drawn: number of cases drawn per invariant, in addition to the scheduled ones; more if those
            and the drawn ones are fewer than twice the quota.
        variants: whether a run on all installed subjects includes the variants that specs list.
        functions: most Python functions that an invariant's scheduled cases enter, and its drawn
            ones, with one call each; see :mod:`attnbench.checking.call_cost`.
    """

    name: str
    drawn: int
    variants: bool = True
    functions: int = 8_000_000

    @property
    def quota(self) -> int:
        """Number of cases that must give a verdict; with fewer, an invariant is inconclusive."""
        return max(5, self.drawn // 5)


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("quick", 4, variants=False, functions=120_000),
        Profile("default", 100),
        Profile("thorough", 1000, functions=80_000_000),
    )
}


@dataclass(frozen=True)
class Effort:
    """The effort of the run that a check belongs to.

    Args:
        profile: how many cases are drawn.
        failures: the store of failing cases, which are tried again.
        shrink: whether to look for smaller ones.
    """

    profile: Profile = PROFILES["default"]
    failures: Failures | None = None
    shrink: bool = True


_EFFORT: ContextVar[Effort] = ContextVar("attnbench_effort", default=Effort())  # noqa: B039 -- frozen


def current_effort() -> Effort:
    """The effort of the run; outside of one, the default profile and no store of failures."""
    return _EFFORT.get()


def current_profile() -> Profile:
    """The active profile; lets a check skip slow work."""
    return _EFFORT.get().profile


@contextmanager
def effort_of(effort: Effort) -> Iterator[None]:
    """Set the effort of a run for a context."""
    token = _EFFORT.set(effort)
    try:
        yield
    finally:
        _EFFORT.reset(token)
