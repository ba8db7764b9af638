"""Diagnosis: the likely cause of a subject's failures, and the failure that shows it best.

A *clue* is a mistake that explains the wrong outputs, the message of a failure, or a violated
invariant. Each clue points at a cause. The first one in the order of ``causes.json``, the most
specific property first, is used. It is reported only if the same clue was right for most of the
known bugs that show it, which are the mutants of ``diagnoses.json``, and if one of those with
similar failures has the same cause.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from attnbench.checking.outcomes import CONTRACT, Outcome

__all__ = ["Clue", "clue_of", "diagnosed", "most_specific", "trusted"]

_TRUST = 0.55
"""Share of the known bugs with a clue for which it must be right."""

_NEAREST, _VOTE = 7, 0.1
"""Number of most similar known bugs to compare with, and the weighted share that must agree."""

_SAID = 0.3
"""Share of the failures, unless the contract is one, that must report a fault of the call."""

_FEW = 2
"""With at most this many failures, a violated invariant stands nearly alone and tells more."""

_PRIOR: Mapping[str, tuple[float, float]] = {
    "makes": (3.0, 0.3),
    "says": (1.0, 0.7),
    "alone": (1.2, 0.5),
    "fails": (1.0, 0.7),
}
"""Prior counts of right and wrong for each kind of clue."""

_SPOILS = "inputs_changed"
"""The message that precedes any mistake, since the next call gets other inputs."""

_BROKEN = re.compile(
    r"raised |returned \w+ of shape|second time|changes its input|but should return"
)
"""Messages of failures of the call itself, for which the invariant is irrelevant."""


@dataclass(frozen=True)
class Clue:
    """A clue that points at a cause.

    Args:
        kind: ``makes`` (a mistake explains it), ``says``, ``alone`` or ``fails`` (an invariant).
        what: the mistake, the cause in the message, or the invariant.
        cause: a key of ``causes.json``.
    """

    kind: str
    what: str
    cause: str

    @property
    def name(self) -> str:
        """The clue as one word, the key under which known bugs are counted."""
        return f"{self.kind}:{self.what}"


@functools.cache
def _data(name: str) -> Any:
    file = resources.files("attnbench.checking.evidence").joinpath(name)
    return json.loads(file.read_text(encoding="utf-8"))


def clue_of(outcomes: Iterable[Outcome]) -> Clue | None:
    """The first clue in the failures of one subject; ``None`` without any."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    data = _data("causes.json")
    said = [outcome.reason.partition("\n  [")[0] for outcome in failed]
    contract = {o.reason.partition("\n  [")[0] for o in failed if o.invariant == CONTRACT}
    found = [
        cause
        for pattern, cause in data["said"]
        if (saying := [one for one in said if re.search(pattern, one)])
        and (len(saying) >= _SAID * len(failed) or contract & {*saying})
    ]
    if found[:1] == [_SPOILS]:
        return Clue("says", _SPOILS, _SPOILS)
    for outcome in failed:
        for mistake in outcome.explained[:1]:
            kind = re.sub(r"_\d+$", "", mistake)
            return Clue("makes", kind, data["made_by"][kind])
    if found:
        return Clue("says", found[0], found[0])
    names = {o.invariant for o, one in zip(failed, said, strict=True) if not _BROKEN.search(one)}
    if not names and not contract:  # where the contract's own call fails, any other fails with it
        names = {outcome.invariant for outcome in failed}
    for name, cause in data["shown_by"]:
        if name in names:
            return Clue("alone" if len(failed) <= _FEW else "fails", name, cause)
    return None


def trusted(
    clue: Clue,
    known: Iterable[Mapping[str, Any]],
    failed: Collection[str],
    ran: Set[str] | None = None,
) -> bool:
    """Whether a clue was right for enough known bugs, and similar ones have its cause.

    Args:
        clue: the clue found in the failures.
        known: rows of ``diagnoses.json``.
        failed: the invariants that the subject violates.
        ran: the invariants with a result; ``None`` for all.
    """
    known = list(known)
    right, wrong = _PRIOR[clue.kind]
    for row in known:
        if row["clue"] == clue.name:
            right, wrong = (right + 1, wrong) if clue.cause in row["causes"] else (right, wrong + 1)
    if right / (right + wrong) < _TRUST:
        return False
    # a mistake that gives exactly the subject's output needs no similar bug
    return clue.kind == "makes" or _vote(clue.cause, known, {*failed}, ran) >= _VOTE


def _vote(
    cause: str, known: Sequence[Mapping[str, Any]], failed: Set[str], ran: Set[str] | None
) -> float:
    """The weighted share of the most similar known bugs (and any as similar) that have a cause."""
    alike = []
    for row in known:
        others = {*row["failed"]} if ran is None else ran & {*row["failed"]}
        alike.append((len(failed & others) / len(failed | others), cause in row["causes"]))
    least = sorted((likeness for likeness, _ in alike), reverse=True)[:_NEAREST][-1:]
    near = [(likeness, agrees) for likeness, agrees in alike if [likeness] >= least]
    total = sum(likeness for likeness, _ in near)
    return sum(likeness for likeness, agrees in near if agrees) / total if total else 0.0


def _told(clue: Clue) -> str:
    """A cause in words, with public bugs that had this cause and showed the same clue."""
    text: str = _data("causes.json")["causes"][clue.cause]
    bugs = [
        bug
        for row in _data("diagnoses.json")
        if row["clue"] == clue.name and clue.cause in row["causes"]
        for bug in row["bugs"]
        if "#" in bug
    ]
    found = list(dict.fromkeys(bugs))[:3]
    return f"{text}, as in {', '.join(found)}" if found else text


def _judged(outcomes: Sequence[Outcome]) -> Clue | None:
    """The clue, unless it is a property that was not reached and the contract was not checked.

    Where every call raises, a property alone does not tell why.
    """
    clue = clue_of(outcomes)
    if clue is None or clue.kind in ("makes", "says"):
        return clue
    checked = any(o.invariant == CONTRACT and o.status != "skipped" for o in outcomes)
    failed = [o for o in outcomes if o.status == "failed"]
    return clue if checked or not all(_BROKEN.search(o.reason) for o in failed) else None


def diagnosed(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """Add the likely cause to the failure of each subject that shows it best."""
    outcomes = list(outcomes)
    for subject in dict.fromkeys(o.subject for o in outcomes if o.status == "failed"):
        places = [i for i, outcome in enumerate(outcomes) if outcome.subject == subject]
        clue = _judged([outcomes[i] for i in places])
        failed = {outcomes[i].invariant for i in places if outcomes[i].status == "failed"}
        ran = failed | {outcomes[i].invariant for i in places if outcomes[i].status == "passed"}
        if clue is not None and trusted(clue, _data("diagnoses.json"), failed, ran):
            best = _shows(clue, [outcomes[i] for i in places])
            index = next(i for i in places if outcomes[i] is best)
            outcomes[index] = replace(best, diagnosis=_told(clue))
    return tuple(outcomes)


def most_specific(bad: Sequence[Outcome]) -> Outcome:
    """The failure to describe where no cause is known: the contract, or the most specific one."""
    order = [CONTRACT, *(name for name, _ in _data("causes.json")["shown_by"])]
    places = {name: place for place, name in enumerate(order)}
    failed = [outcome for outcome in bad if outcome.status == "failed"]
    return min(failed or bad[:1], key=lambda outcome: places.get(outcome.invariant, len(order)))


def _shows(clue: Clue, outcomes: Sequence[Outcome]) -> Outcome:
    """The failure that shows a cause: that of its invariant, one that it explains, or the first."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    order = {name: n for n, (name, _) in enumerate(_data("causes.json")["shown_by"])}
    own = {name for name, cause in _data("causes.json")["shown_by"] if cause == clue.cause}

    def rank(outcome: Outcome) -> tuple[bool, bool, int]:
        explained = any(re.sub(r"_\d+$", "", one) == clue.what for one in outcome.explained)
        place = order.get(outcome.invariant, len(order))
        return outcome.invariant not in own, not explained, place

    return min(failed, key=rank)
