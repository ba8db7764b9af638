"""What a check is to run: subjects with their invariants, and how they are split."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attnbench.checking.outcomes import CONTRACT, Outcome, running_order
from attnbench.processes.pool import cores
from attnbench.registry.address import Address

RESTARTS = 1
"""How often a subject is restarted, after the invariant in which its process ended."""


@dataclass(frozen=True)
class Work:
    """One subject, and the invariants that still have to run on it.

    Args:
        target: address by which the child finds it, and it alone.
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
    found = []
    for work in works:
        first = tuple(name for name in work.invariants if name == CONTRACT)
        rest = [name for name in work.invariants if name != CONTRACT]
        shares = [(*first, *rest[part::parts]) for part in range(min(parts, len(rest)))]
        found += [replace(work, invariants=share) for share in shares] or [work]
    return found


def digests(pairs: Sequence[tuple[Address, str]]) -> dict[str, str]:
    """A digest of each addressed file, since outcomes depend on its content."""
    paths = {str(target.source) for target, _ in pairs if target.is_file}
    return {
        path: hashlib.sha256(Path(path).read_bytes()).hexdigest()
        for path in sorted(paths)
        if Path(path).is_file()
    }


def without(works: Sequence[Work], recorded: Collection[Outcome]) -> list[Work]:
    """The works without the outcomes that an earlier run recorded.

    A contract that failed runs again before the remaining invariants, whose process must know it.
    """
    done = {key_of(outcome): outcome.status for outcome in recorded}
    found = []
    for work in works:
        left = [n for n in work.invariants if (work.label, work.seed, n) not in done]
        broken = done.get((work.label, work.seed, CONTRACT)) == "failed"
        if left:
            first = (CONTRACT,) if broken else ()
            found.append(replace(work, invariants=(*first, *left), broken=broken))
    return found


def key_of(outcome: Outcome) -> tuple[str, int | None, str]:
    """The subject, seed and invariant, which identify an outcome in a check."""
    return outcome.subject, outcome.seed, outcome.invariant
