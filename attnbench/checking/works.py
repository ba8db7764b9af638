"""What a check is to run: subjects with their invariants, and how they are split."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from attnbench.checking.outcomes import COMPILING, CONTRACT, Outcome
from attnbench.processes.pool import cores
from attnbench.registry.address import Address

RESTARTS = 1
"""How often a subject is restarted, after the invariant in which its process ended."""

_COARSE, _FINE = 5, 56
"""Works that the invariants of a subject are dealt to on a cluster: at first, and at the end."""

_AT_LEAST = 40
"""Least number of subjects, the last ones, that are dealt finely."""


@dataclass(frozen=True)
class Work:
    """One subject, and the invariants that still have to run on it.

    Args:
        target: address by which the child finds it, and it alone.
        invariants: names of the invariants, in order.
        label: name of the subject in its outcomes.
        late: names of invariants that run after the others have run on every subject.
        parts: number of works that late ones are dealt to, unless the contract failed; 0: one.
        broken: whether the contract failed.
        restarts: how often it may be restarted.
        seed: seed of the drawn cases.
    """

    target: Address
    invariants: tuple[str, ...]
    label: str
    late: tuple[str, ...] = ()
    parts: int = 0
    broken: bool = False
    restarts: int = RESTARTS
    seed: int | None = None


def works_of(
    pairs: Sequence[tuple[Address, str]],
    invariants: Sequence[str],
    of_subject: Mapping[str, Sequence[str]] | None = None,
    *,
    late: Collection[str] = (),
) -> list[Work]:
    """Make a work for each address and subject; ambiguous names are labelled with the address.

    Args:
        pairs: addresses and names of subjects.
        invariants: names of the invariants, in order.
        of_subject: names of the invariants that apply to a subject, by its name; by default all.
        late: names of invariants that run after the others have run on every subject.
    """
    count = Counter(subject for _, subject in pairs)
    works = []
    for target, subject in pairs:
        names = [n for n in invariants if of_subject is None or n in of_subject[subject]]
        first = tuple(name for name in names if name not in late)
        last = tuple(name for name in names if name in late)
        label = subject if count[subject] == 1 else f"{subject} of {target}"
        works.append(Work(target, first or last, label, late=last if first else ()))
    return works


def dealt(works: Sequence[Work], jobs: int) -> list[Work]:
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
        hands = [(rest[part::parts], work.late[part::parts]) for part in range(parts)]
        shares = [
            replace(work, invariants=(*first, *(hand or late)), late=late if hand else ())
            for hand, late in hands
            if hand or late
        ]
        found += shares or [work]
    return found


def apart(works: Sequence[Work]) -> list[Work]:
    """The works for a cluster: the contract first, then the others in several processes.

    A task has a cost, and workers without one wait at the end for the last. The last fifth of the
    subjects is therefore dealt to many short works, and the others to a few long ones.
    """
    found = []
    coarse = min(len(works) * 4 // 5, len(works) - _AT_LEAST)
    for place, one in enumerate(works):
        work = replace(one, parts=_COARSE if place < coarse else _FINE)
        names = (*work.invariants, *work.late)
        if work.broken:
            found.append(one)
        elif CONTRACT in names and len(names) > 1:
            rest = tuple(name for name in names if name != CONTRACT)
            found.append(replace(work, invariants=(CONTRACT,), late=rest))
        else:
            found += pieces(replace(work, late=names))
    return found


def pieces(work: Work) -> list[Work]:
    """The late invariants of a work in several works, the longest first.

    What compiles takes longest, and has a work of its own. The others share ``parts`` of them.
    """
    rest = [name for name in work.late if name not in COMPILING]
    hands: list[tuple[str, ...]] = [(name,) for name in work.late if name in COMPILING]
    hands += [hand for part in range(work.parts) if (hand := tuple(rest[part :: work.parts]))]
    return [replace(work, invariants=hand, late=(), parts=0) for hand in hands]


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

    def left(work: Work, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if (work.label, work.seed, name) not in done)

    found = []
    for work in works:
        now, late = left(work, work.invariants), left(work, work.late)
        broken = done.get((work.label, work.seed, CONTRACT)) == "failed"
        if now or late:
            first = (CONTRACT,) if broken else ()
            late, now = (late, now) if now else ((), late)
            found.append(replace(work, invariants=(*first, *now), late=late, broken=broken))
    return found


def key_of(outcome: Outcome) -> tuple[str, int | None, str]:
    """The subject, seed and invariant, which identify an outcome in a check."""
    return outcome.subject, outcome.seed, outcome.invariant
