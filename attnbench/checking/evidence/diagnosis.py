"""Diagnosis: the likely cause of a subject's failures, and which of them shows it best.

A *clue* is a mistake that explains what a subject gets wrong, what a failure says, or an invariant
that fails. Each points at a cause; of those that are found the first in the order of
``causes.json`` counts, the most specific property first. It is told where the same clue was right
for most of the known bugs that show it, which are the mutants of ``diagnoses.json``.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from attnbench.checking.outcomes import CONTRACT, Outcome

__all__ = ["Clue", "clue_of", "diagnosed", "trusted"]

_TRUST = 0.55
"""Of the known bugs with a clue, the share for which it has to be right."""

_SAID = 0.3
"""Of the failures, the share that has to say what is wrong with a call; or the contract."""

_FEW = 2
"""Failures at which an invariant stands nearly alone, which tells more."""

_PRIOR: Mapping[str, tuple[float, float]] = {
    "makes": (3.0, 0.3),
    "says": (1.0, 0.7),
    "alone": (1.2, 0.5),
    "fails": (1.0, 0.7),
}
"""Of each kind of clue, how often it is taken to have been right and wrong before any bug."""

_SPOILS = "inputs_changed"
"""Of what failures say, what comes before any mistake: the next call gets other inputs."""

_BROKEN = re.compile(
    r"raised |returned \w+ of shape|second time|changes its input|but should return"
)
"""What a failure says where the call itself fails, so that its invariant says no more."""


@dataclass(frozen=True)
class Clue:
    """What points at a cause.

    Args:
        kind: ``makes`` (a mistake explains it), ``says``, ``alone`` or ``fails`` (an invariant).
        what: the mistake, the cause that is said, or the invariant.
        cause: a key of ``causes.json``.
    """

    kind: str
    what: str
    cause: str

    @property
    def name(self) -> str:
        """It as one word, by which known bugs are counted."""
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


def trusted(clue: Clue, known: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a clue was right for enough of the known bugs, rows of ``diagnoses.json``."""
    right, wrong = _PRIOR[clue.kind]
    for row in known:
        if row["clue"] == clue.name:
            right, wrong = (right + 1, wrong) if clue.cause in row["causes"] else (right, wrong + 1)
    return right / (right + wrong) >= _TRUST


def _told(clue: Clue) -> str:
    """A cause in words, with bugs of other projects that had it and showed the same clue."""
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


def diagnosed(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    """The outcomes of any number of subjects; the failure that shows a cause best tells it."""
    outcomes = list(outcomes)
    for subject in dict.fromkeys(o.subject for o in outcomes if o.status == "failed"):
        places = [i for i, outcome in enumerate(outcomes) if outcome.subject == subject]
        clue = clue_of(outcomes[i] for i in places)
        if clue is not None and trusted(clue, _data("diagnoses.json")):
            best = _shows(clue, [outcomes[i] for i in places])
            index = next(i for i in places if outcomes[i] is best)
            outcomes[index] = replace(best, diagnosis=_told(clue))
    return tuple(outcomes)


def _shows(clue: Clue, outcomes: Sequence[Outcome]) -> Outcome:
    """The failure that shows a cause: its invariant's, or the one that comes first."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    order = {name: n for n, (name, _) in enumerate(_data("causes.json")["shown_by"])}
    own = {name for name, cause in _data("causes.json")["shown_by"] if cause == clue.cause}
    return min(failed, key=lambda o: (o.invariant not in own, order.get(o.invariant, len(order))))
