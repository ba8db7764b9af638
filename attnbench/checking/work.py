"""The work of a check: subjects with their invariants, and how they are split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from attnbench.checking.outcomes import KEEPS_CONTRACT, Outcome, running_order
from attnbench.processes.pool import cores
from attnbench.registry.address import Address

RESTARTS = 1
"""How often a subject's process is restarted after it ended in an invariant."""


@dataclass(frozen=True)
class Work:
    """One subject, and the invariants that still have to run on it.

    Args:
        target: address of this subject alone.
        invariants: names of the invariants, in order.
        label: name of the subject in its outcomes.
        broken: whether the contract failed.
        restarts: how often it may be restarted.
        seed: seed of the drawn cases.
    """

    target: Address
    invariants: tuple[str, ...]
    label: str
    broken: bool = False
    restarts: int = RESTARTS
    seed: int | None = None


def works_of(
    pairs: Sequence[tuple[Address, str]],
    invariants: Sequence[str],
    of_subject: Mapping[str, Sequence[str]] | None = None,
) -> list[Work]:
    """Make a work for each address and subject; ambiguous names are labelled with the address."""
    count = Counter(subject for _, subject in pairs)
    works = []
    for target, subject in pairs:
        names = [n for n in invariants if of_subject is None or n in of_subject[subject]]
        names.sort(key=running_order)
        label = subject if count[subject] == 1 else f"{subject} of {target}"
        works.append(Work(target, tuple(names), label))
    return works


def shared_out(works: Sequence[Work], jobs: int) -> list[Work]:
    """Split works into parts if there are too few to keep all jobs busy.

    Each part begins with the contract, which decides whether to run the others.
    """
    parts = (jobs or cores()) // max(1, len(works))
    if parts < 2:
        return list(works)
    pieces = []
    for work in works:
        contract = tuple(name for name in work.invariants if name == KEEPS_CONTRACT)
        others = [name for name in work.invariants if name != KEEPS_CONTRACT]
        shares = [(*contract, *others[part::parts]) for part in range(min(parts, len(others)))]
        pieces += [replace(work, invariants=share) for share in shares] or [work]
    return pieces


def remaining_works(works: Sequence[Work], outcomes: Collection[Outcome]) -> list[Work]:
    """The works without the outcomes that an earlier run recorded.

    A failed contract runs again before the remaining invariants, whose process needs its outcome.
    """
    statuses = {key_of(outcome): outcome.status for outcome in outcomes}
    remaining = []
    for work in works:
        names = [n for n in work.invariants if (work.label, work.seed, n) not in statuses]
        is_broken = statuses.get((work.label, work.seed, KEEPS_CONTRACT)) == "failed"
        if names:
            contract = (KEEPS_CONTRACT,) if is_broken else ()
            remaining.append(replace(work, invariants=(*contract, *names), broken=is_broken))
    return remaining


def key_of(outcome: Outcome) -> tuple[str, int | None, str]:
    """The subject, seed and invariant, which identify an outcome in a check."""
    return outcome.subject, outcome.seed, outcome.invariant
