"""The invariants of attnbench, as an oracle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnbench
from attnbench_zoo.entries import Entry

__all__ = ["invariants_of_a_profile"]


def invariants_of_a_profile(profile: str) -> Callable[[Entry], bool]:
    """Whether no invariant fails on an entry's candidate, by profile; it sees no reference."""

    def oracle(entry: Entry) -> bool:
        mark: Any = attnbench.parametrize_with_checks([entry.spec], profile=profile)
        for subject, check in mark.args[1]:
            if check.outcome(subject).status not in ("passed", "skipped", "inconclusive"):
                return False
        return True

    return oracle
