"""The search for a small change of a subject's source with which what failed holds.

It runs in a process of its own, since changed code may do anything. What it finds is no guess: with
the change, each property that failed passed its quick check, and no other one failed at some of its
scheduled cases. Nor is it a remedy: what fails may only have been left out.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from attnbench.cases.case import Case
from attnbench.checking.mending.approval import Judge, Place, Trial, holds
from attnbench.checking.mending.edit_context import REMOVAL, STATEMENT
from attnbench.checking.mending.edits import edits
from attnbench.checking.mending.losses import Losses
from attnbench.checking.mending.running_code import RunLines, SourceFile
from attnbench.checking.plan import in_wide_dtypes, planned
from attnbench.checking.profiles import PROFILES, Effort, effort_of
from attnbench.checking.runner import seeded
from attnbench.registry.address import Address
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

_SECONDS, _MORE_SECONDS, _REPAIR_SECONDS = 26.0, 4.0, 20.0
"""Most seconds of computing of a search, most of them behind the first change that is found, and
most of them in which changes are tried that leave ordinary calls as they are."""

_MOST_FOUND = 2
"""Changes of different lines that are shown."""

_OTHERS = "calls in which nothing failed change with it too"

_APART = ("reference", "sizes", "extras", "supports", "settle")
"""Functions of a spec that say what is right, or when; they are not changed."""


def mends_of(
    target: Address,
    failures: Sequence[tuple[str, str]],
    beside: Sequence[str] = (),
    wide: bool = False,
) -> Iterator[str]:
    """Yield the changes of a subject's source with which what failed holds.

    Args:
        target: address of the subject.
        failures: names of the properties that failed, and ids of their cases.
        beside: as in :func:`mends`.
        wide: whether half types are left out, in which calls raise.
    """
    (subject,), invariants = planned(target, profile="quick", device="cpu", dtypes=None)
    subject = (in_wide_dtypes(subject) if wide else None) or subject
    by_name = {invariant.name: invariant for invariant in invariants}
    if all(name in by_name for name, _ in failures):
        failing = [(by_name[name], Case.from_id(case)) for name, case in failures]
        yield from mends(subject, invariants, failing, beside=beside)


def mends(
    subject: Subject,
    invariants: Sequence[Invariant],
    failing: Sequence[Trial],
    *,
    beside: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the changes with which what failed holds, as text, the smallest changes first.

    Those that leave calls as they are in which nothing failed are preferred: others may hold
    because they lose what the call was for. Of these only small ones count, and they say so.

    Args:
        subject: the subject; there are none if it is declared to be the same as another one of
            some file, since either could be changed.
        invariants: all that should hold.
        failing: the properties that failed, and the cases at which they did.
        beside: names of the properties that do not show an ordinary call to be wrong.
    """
    if subject.same_as and ":" in subject.same_as:
        return
    effort = Effort(PROFILES["quick"], shrink=False, explain=False, brief=True, failed={})
    with seeded(), effort_of(effort):
        codes = filter(None, (_code_of(invariant.check) for invariant, _ in failing))
        lines = RunLines(_apart(subject), {code.co_filename for code in codes})
        trials = sorted(_failing_again(subject, failing, lines), key=lambda one: one[0])
        places = _places(lines)
        if len(trials) == len(failing) and places:
            judge = Judge(subject, invariants, [(one, case) for _, one, case in trials], beside)
            yield from _approved(places, judge, lines)


def _approved(places: Sequence[Place], judge: Judge, lines: RunLines) -> Iterator[str]:
    """Yield the changes that hold: the first kind of which there is one, each of its own line."""
    ways = _Ways(judge, lines)
    end = time.process_time() + _SECONDS
    repairs, removals = ([p for p in places if _is_less(p) == less] for less in (False, True))
    for changes in (
        ways.kept(repairs, end - _SECONDS + _REPAIR_SECONDS),
        ways.of_other_calls(end),
        ways.kept(removals, end),
        ways.losing(end),
    ):
        yield from () if ways.shown else changes


class _Ways:
    """The kinds of changes, one after the other.

    Attributes:
        shown: files and lines of the changes that were found.
    """

    def __init__(self, judge: Judge, lines: RunLines) -> None:
        self._judge, self._lines, self.shown = judge, lines, set[tuple[str, int]]()
        self._others, self._losing = list[Place](), dict[Place, str]()
        self._lost_by = Losses(judge, lines).of

    def _new(self, places: Iterable[Place], end: float) -> Iterator[Place]:
        """Yield the places of other lines than those shown, up to a time or a number."""
        for place in places:
            if time.process_time() > end or len(self.shown) == _MOST_FOUND:
                return
            if place.line not in self.shown:
                was_shown = bool(self.shown)
                yield place
                if self.shown and not was_shown:
                    end = min(end, time.process_time() + _MORE_SECONDS)

    def kept(self, places: Iterable[Place], end: float) -> Iterator[str]:
        """Yield those that leave ordinary calls as they are, and lose nothing else."""
        last = STATEMENT  # the rank that goes furthest
        for place in self._new(places, end):
            if place.edit.rank > last:
                return
            is_right = self._judge.approves(place, briefly=True)
            if is_right is None and place.edit.rank <= self._judge.most:
                self._others.append(place)
            if not is_right:
                continue
            lost = "" if _is_less(place) else self._lost_by(place)
            if lost:
                self._losing.setdefault(place, lost)
                continue
            if not self._judge.approves(place):
                continue
            last = min(last, place.edit.rank)
            self.shown.add(place.line)
            yield _text(place)

    def of_other_calls(self, end: float) -> Iterator[str]:
        """Yield those that change calls in which nothing failed."""
        for place in self._new(self._others, end):
            is_brief = self._judge.approves(place, others=True, briefly=True)
            if is_brief and not self._lost_by(place) and self._judge.approves(place, others=True):
                self.shown.add(place.line)
                yield f"{_text(place)}\n{_OTHERS}"

    def losing(self, end: float) -> Iterator[str]:
        """Yield those by which lines no longer run, or a number is no longer one of its own."""
        for place in self._new(self._losing, end):
            if self._judge.approves(place):
                self.shown.add(place.line)
                yield f"{_text(place)}\n{self._losing[place]}"


def _is_less(place: Place) -> bool:
    """Whether a change leaves something out."""
    return place.edit.rank >= REMOVAL


def _code_of(function: Any) -> CodeType | None:
    """The code of a function behind wrappers and partial applications."""
    while isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        function = getattr(function, "func", None) or inspect.unwrap(function)
    return getattr(function, "__code__", None)


def _apart(subject: Subject) -> set[CodeType]:
    specs = subject.maker, subject.spec
    codes = (_code_of(getattr(one, name, None)) for name in _APART for one in specs)
    return {code for code in codes if code is not None}


def _failing_again(
    subject: Subject, failing: Iterable[Trial], lines: RunLines
) -> Iterator[tuple[float, Invariant, Case]]:
    """Yield what fails again, with the seconds that it takes, and note the lines that run."""
    for invariant, case in failing:
        with lines.watched():
            fails = holds(subject, invariant, case) is False
        started = time.monotonic()
        if fails and holds(subject, invariant, case) is False:
            yield time.monotonic() - started, invariant, case


def _places(lines: RunLines) -> list[Place]:
    """The changes of the lines that ran, the smallest changes first."""
    found = []
    for file, ran in lines.ran.items():
        with contextlib.suppress(SyntaxError, OSError):  # of a notebook, for example
            source = SourceFile(file)
            reached = [one for one in source.definitions if not ran.keys().isdisjoint(_lines(one))]
            for definition in reached:
                others = [other for other in reached if other is not definition]
                changes = edits(definition, source.lines, ran, source.signatures, others)
                found += [
                    Place(source, definition, edit)
                    for edit in changes
                    if (file, edit.start[0]) not in lines.lines_apart
                ]
    return sorted(found, key=lambda place: place.edit.rank)


def _lines(definition: Any) -> range:
    return range(definition.lineno, (definition.end_lineno or 0) + 1)


def _text(place: Place) -> str:
    """The lines that a change replaces, and those that it puts there."""
    before, after = place.source.lines, place.edit.applied(place.source.lines)
    name = Path(place.source.name).name
    olds, news = list[str](), list[str]()
    for kind, *places in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind != "equal":
            olds += (f"- {name}:{i + 1}: {before[i].strip()}" for i in range(*places[:2]))
            news += (f"+ {name}:{i + 1}: {after[i].strip()}" for i in range(*places[2:]))
    news = [line for line in news if not line.endswith(": ")]
    less = ["this leaves something out, which may be all that it does"] if _is_less(place) else []
    return "\n".join([*olds, *news, *less])
