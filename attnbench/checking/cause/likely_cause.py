"""The likely cause of a subject's failures, and the failure that shows it best.

A *clue* is a cause that an error itself names, a mistake that reproduces the wrong outputs, or a
violated invariant. ``causes.json`` lists the invariants in order, the most specific first, each
with the cause that it points at, or none. A wrong cause is worse than none, so that an invariant
that many mistakes violate counts only if few others failed with it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from attnbench.cases.case import Case
from attnbench.checking.known_causes import known_causes
from attnbench.checking.outcomes import CONTRACT, Failure, Outcome

_SAID = 0.3
"""Share of the failures, unless the contract is one, that must name a cause themselves."""

_FEW = 3
"""With more failures, an invariant on the output in general points at nothing."""

_FIRST = "inputs_changed"
"""What is said before any mistake is looked for, since the next call gets other inputs."""


_APART = ("hidden_slots_may_hold_nan", "hidden_slots_may_hold_nan_in_training")
"""Only NaN in padding violates these, so that other failures have another cause."""

_INERT = "padded_tokens_are_inert"

_SCALAR, _FORMULA = "agrees_with_scalar_reference", "scores_formula"

_NARROW = "half_precision"
_NUMERIC = ("agrees_with_float64", "gradients_are_finite_at_extremes")
"""What points at half precision if it fails with half types only."""


@dataclass(frozen=True)
class Clue:
    """A clue that points at a cause.

    Args:
        kind: ``says`` (an error names it), ``makes`` (a mistake explains it), or ``fails``.
        what: the cause that is named, the mistake, or the invariant.
        cause: a key of ``causes`` in ``causes.json``.
    """

    kind: str
    what: str
    cause: str


@functools.cache
def _table() -> tuple[tuple[str, str | None], ...]:
    found = known_causes()
    return tuple((name, cause) for part in _PARTS for name, cause in found[part])


_PARTS = ("specific", "general", "late")


@functools.cache
def _general() -> frozenset[str]:
    return frozenset(name for name, _ in known_causes()["general"])


def mistake_of(explained: str) -> str:
    """The mistake without the number that tells its variant."""
    return re.sub(r"_\d+$", "", explained)


def clue_of(outcomes: Iterable[Outcome]) -> Clue | None:
    """The first clue in the failures of one subject; ``None`` without any."""
    failed = {o.invariant: o.failure for o in outcomes if o.failure is not None}
    failed = {n: failure for n, failure in failed.items() if n not in _APART} or failed
    said = _said(failed)
    if said == _FIRST:
        return Clue("says", said, said)
    for failure in failed.values():
        for explained in failure.mistakes[:1]:
            mistake = mistake_of(explained)
            return Clue("makes", mistake, known_causes()["mistakes"][mistake])
    if said is not None:
        return Clue("says", said, said)
    if CONTRACT in failed:  # any other call fails as the contract's does
        return None
    wider = sum(bool(one.case) and not _narrow(one) for one in failed.values())
    for name, known in _table():
        found = failed.get(name)
        if found is None or found.raised or (known and found.named not in (None, known)):
            continue
        cause = _NARROW if name in _NUMERIC and _narrow(found) else known or found.named
        if cause == _NARROW and wider > _FEW:
            continue
        if cause is not None and not (name in _general() and len(failed) > _FEW):
            return Clue("fails", name, cause)
        scalar = failed.get(_SCALAR)  # all else follows from scores of another formula
        return Clue("says", _FORMULA, _FORMULA) if scalar and scalar.named == _FORMULA else None
    return None


def _narrow(failure: Failure) -> bool:
    """Whether it fails with half types only, since cases shrink to wider ones."""
    return bool(failure.case and failure.smallest) and Case.from_id(failure.case or "").is_narrow


def _said(failed: Mapping[str, Failure]) -> str | None:
    """The cause that the contract's failure names, or else enough of the failures."""
    own = failed.get(CONTRACT)
    if own is not None and own.named is not None:
        return own.named
    inert = failed.get(_INERT)
    if inert is not None and inert.named == "mask_inverted":  # as real tokens alone are inert
        return inert.named
    named = [failure.named for failure in failed.values() if failure.named is not None]
    for cause in dict.fromkeys(named):
        if named.count(cause) >= _SAID * len(failed):
            return cause
    return None


def with_cause(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Add the likely cause to the failure of each subject that shows it best."""
    outcomes = list(outcomes)
    for subject in dict.fromkeys(o.subject for o in outcomes if o.failure is not None):
        places = [i for i, outcome in enumerate(outcomes) if outcome.subject == subject]
        clue = clue_of([outcomes[i] for i in places])
        lead = None if clue is None else _shows(clue, [outcomes[i] for i in places])
        for i in places:
            outcome = outcomes[i]
            if outcome.failure is not None:
                cause = clue.cause if clue is not None and outcome is lead else None
                outcomes[i] = replace(outcome, failure=replace(outcome.failure, cause=cause))
    return tuple(outcomes)


def lead_of(bad: Sequence[Outcome]) -> Outcome:
    """The failure to describe: that with the likely cause, or else the most specific one.

    Where most calls raise, it is one of those: the properties were not reached.
    """
    for outcome in bad:
        if outcome.failure is not None and outcome.failure.cause:
            return outcome
    order = {name: place for place, (name, _) in enumerate(_table())}
    failed = [outcome for outcome in bad if outcome.failure is not None] or list(bad[:1])
    failed = [outcome for outcome in failed if outcome.invariant not in _APART] or failed
    raised = [o for o in failed if o.failure is not None and o.failure.raised]
    some = raised if 2 * len(raised) > len(failed) else [o for o in failed if o not in raised]
    return min(
        some, key=lambda one: (one.invariant != CONTRACT, order.get(one.invariant, len(order)))
    )


def _shows(clue: Clue, outcomes: Sequence[Outcome]) -> Outcome:
    """The failure that shows a cause: one of its topic, one that names it, or the first."""
    order = {name: place for place, (name, _) in enumerate(_table())}
    topic = [*known_causes()["shown_by"].get(clue.cause, ())]
    topic += [name for name, cause in _table() if cause == clue.cause]
    shows = {name: place for place, name in enumerate(dict.fromkeys(topic))}

    def rank(outcome: Outcome) -> tuple[int, bool, int]:
        failure = outcome.failure
        assert failure is not None
        says = clue.kind == "says" and failure.named == clue.cause
        name = outcome.invariant
        return shows.get(name, len(shows)), not says, order.get(name, len(order))

    return min((o for o in outcomes if o.failure is not None), key=rank)
