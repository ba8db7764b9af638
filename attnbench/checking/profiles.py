"""Profiles: how hard a run looks for a counterexample."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["PROFILE", "PROFILES", "Profile", "current_profile", "missed", "nearest_misses"]


@dataclass(frozen=True)
class Profile:
    """How hard a check looks.

    Args:
        name: of the profile.
        drawn: cases drawn for an invariant, beyond the scheduled ones.
        variants: whether a run of all that is installed takes in the options that specs list.
    """

    name: str
    drawn: int
    variants: bool = True

    @property
    def quota(self) -> int:
        """Cases that must have said something; with fewer, an invariant is inconclusive."""
        return max(5, self.drawn // 5)


PROFILES = {
    p.name: p
    for p in (
        Profile("quick", 12, variants=False),
        Profile("default", 100),
        Profile("thorough", 1000),
    )
}


PROFILE: ContextVar[Profile] = ContextVar("attnbench_profile", default=PROFILES["default"])
"""That of the run that is going on."""


def current_profile() -> Profile:
    """The active profile; lets a check skip slow work."""
    return PROFILE.get()


_SHARES: ContextVar[list[float] | None] = ContextVar("attnbench_shares", default=None)


@contextmanager
def nearest_misses() -> Iterator[list[float]]:
    """Collects how much of its budget each comparison that held has used."""
    shares: list[float] = []
    token = _SHARES.set(shares)
    try:
        yield shares
    finally:
        _SHARES.reset(token)


def missed(share: float) -> None:
    """Tell what share of its budget the error of a comparison that held is."""
    shares = _SHARES.get()
    if shares is not None:
        shares.append(share)
