"""The invariants of attnbench, as an oracle."""

from __future__ import annotations

from collections.abc import Callable

import attnbench
from attnbench_zoo.entries import Entry

__all__ = ["invariants_of_a_profile"]


def invariants_of_a_profile(profile: str) -> Callable[[Entry], bool]:
    """Whether no invariant fails on an entry's candidate, by profile; it sees no reference."""

    def oracle(entry: Entry) -> bool:
        statuses = {found.status for found in attnbench.check(entry.spec, profile=profile).outcomes}
        return statuses <= {"passed", "skipped", "inconclusive"}

    return oracle
