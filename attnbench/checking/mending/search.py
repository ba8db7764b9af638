"""The search for a small change of a subject's source with which what failed holds.

It runs in a process of its own, since changed code may do anything. What it finds is no guess: with
the change, each property that failed passed its quick check, and no other one failed at some of its
scheduled cases. Nor is it a remedy: what fails may only have been left out.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

import torch
from hypothesis.errors import UnsatisfiedAssumption
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.cases.case_space import space_of
from attnbench.cases.case_strategies import cases
from attnbench.checking.mending.edit_context import REMOVAL, SMALLEST, Edit
from attnbench.checking.mending.edits import edits
from attnbench.checking.mending.running_code import RunLines, SourceFile
from attnbench.checking.mending.time_limit import TooLong, limited
from attnbench.checking.outcomes import COMPILING
from attnbench.checking.plan import planned
from attnbench.checking.profiles import PROFILES, effort_of
from attnbench.checking.runner import run_invariant, seeded, skip_reason
from attnbench.errors import RefusalError
from attnbench.registry.address import Address
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

_SECONDS, _MORE_SECONDS = 20.0, 4.0
"""Most seconds of computing in a search, and most of them behind the first that is found."""

_TRIAL_SECONDS = 2.0
"""Most seconds of one property at one case, as changed code may loop."""

_CASES, _MOST_PAIRS = 5, 2**12
"""Most scheduled cases of each property at which a change has to hold, and the largest of them."""

_OTHERWISE = 3
"""Of so many properties that failed, one may still fail at its case."""

_MOST_FOUND = 2
"""Changes of different lines that are shown."""

_APART = ("reference", "sizes", "extras", "supports", "settle")
"""Functions of a spec that say what is right, or when; they are not changed."""

_Trial = tuple[Invariant, Case]


class _Place(NamedTuple):
    """A change of a definition in a file."""

    source: SourceFile
    definition: Any
    edit: Edit


def mends_of(
    target: Address, failures: Sequence[tuple[str, str]], kept: bool = False
) -> Iterator[str]:
    """Yield the changes of a subject's source with which what failed holds.

    Args:
        target: address of the subject.
        failures: names of the properties that failed, and ids of their cases.
        kept: as in :func:`mends`.
    """
    (subject,), invariants = planned(target, profile="quick", device="cpu", dtypes=None)
    by_name = {invariant.name: invariant for invariant in invariants}
    if all(name in by_name for name, _ in failures):
        failing = [(by_name[name], Case.from_id(case)) for name, case in failures]
        yield from mends(subject, invariants, failing, kept=kept)


def mends(
    subject: Subject,
    invariants: Sequence[Invariant],
    failing: Sequence[_Trial],
    *,
    kept: bool = False,
) -> Iterator[str]:
    """Yield the changes with which what failed holds, as text, the smallest changes first.

    Those that leave an ordinary call, without mask and cache, as it is are preferred: others may
    hold because they lose what the call was for.

    Args:
        subject: the subject; there are none if it is declared to be the same as another one, since
            either could be changed.
        invariants: all that should hold.
        failing: the properties that failed, and the cases at which they did.
        kept: whether only changes count that leave an ordinary call as it is, or are smallest.
    """
    shown = set[tuple[str, int]]()
    with seeded(), effort_of(PROFILES["quick"], None, shrink=False, explain=False):
        codes = filter(None, (_code_of(invariant.check) for invariant, _ in failing))
        lines = RunLines(_apart(subject), {code.co_filename for code in codes})
        trials = sorted(_failing_again(subject, failing, lines), key=lambda one: one[0])
        places = _places(lines)
        if subject.same_as or len(trials) < len(failing) or not places:
            return
        judge = _Judge(subject, invariants, [(one, case) for _, one, case in trials])
        end, others = time.process_time() + _SECONDS, list[str]()
        for place in places:
            is_rest = bool(shown) and place.edit.rank == REMOVAL
            if time.process_time() > end or len(shown) == _MOST_FOUND or is_rest:
                break
            where = place.source.name, place.edit.start[0]
            if where in shown or (kind := judge.kind_of(place)) is None:
                continue
            if kind == "other outputs":
                if not kept or place.edit.rank == SMALLEST:
                    others.append(_text(place))
                    end = min(end, time.process_time() + 2 * _MORE_SECONDS)
                continue
            end = end if shown else min(end, time.process_time() + _MORE_SECONDS)
            shown.add(where)
            yield _text(place)
    yield from _of_different_lines(others) if not shown else ()


def _of_different_lines(texts: Iterable[str]) -> list[str]:
    """The first texts that begin with different lines."""
    first: dict[str, str] = {}
    for text in texts:
        first.setdefault(text.partition("\n")[0], text)
    return list(first.values())[:_MOST_FOUND]


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
    subject: Subject, failing: Iterable[_Trial], lines: RunLines
) -> Iterator[tuple[float, Invariant, Case]]:
    """Yield what fails again, with the seconds that it takes, and note the lines that run."""
    for invariant, case in failing:
        with lines.watched():
            fails = _holds(subject, invariant, case) is False
        started = time.monotonic()
        if fails and _holds(subject, invariant, case) is False:
            yield time.monotonic() - started, invariant, case


def _places(lines: RunLines) -> list[_Place]:
    """The changes of the lines that ran, the smallest changes first."""
    found = []
    for file, ran in lines.ran.items():
        with contextlib.suppress(SyntaxError, OSError):  # of a notebook, for example
            source = SourceFile(file)
            for definition in source.definitions:
                inside = range(definition.lineno, (definition.end_lineno or 0) + 1)
                reached = {line: names for line, names in ran.items() if line in inside}
                found += [
                    _Place(source, definition, edit)
                    for edit in edits(definition, source.lines, reached, source.signatures)
                    if (file, edit.start[0]) not in lines.lines_apart
                ]
    return sorted(found, key=lambda place: place.edit.rank)


class _Judge:
    """Decides whether what failed holds with a change, and nothing else fails.

    Args:
        subject, invariants: as in :func:`mends`.
        failing: what fails, the quickest first.
    """

    def __init__(
        self, subject: Subject, invariants: Iterable[Invariant], failing: Sequence[_Trial]
    ) -> None:
        self._subject, self._failing = subject, failing
        names = {invariant.name for invariant, _ in failing}
        schedule = _schedule(subject, (one for one in invariants if one.name not in names))
        self._others = [trial for trial in schedule if _holds(subject, *trial) is not False]
        self._usual = _usual_output(subject)

    def kind_of(self, place: _Place) -> str | None:
        """Try a change: ``None`` if it is not approved, or else what an ordinary call gives."""
        lines = place.edit.applied(place.source.lines)
        with place.source.running(place.definition, lines) as runs:
            if not runs:
                return None
            for cache in _caches():
                cache.cache_clear()
            if not (
                self._most_hold()
                and not any(_holds(self._subject, *trial) is False for trial in self._others)
                and all(self._passes(invariant) for invariant, _ in self._failing)
            ):
                return None
            output = _usual_output(self._subject)
        if self._usual is None or output is None or self._usual.shape != output.shape:
            return "other outputs"
        is_same = torch.allclose(self._usual, output, equal_nan=True)
        return "the same outputs" if is_same else "other outputs"

    def _most_hold(self) -> bool:
        """Whether properties hold where they failed, but for one of three or more.

        That may be a smallest counterexample of something else, as of what overflows: whether its
        property passes its quick check is seen later.
        """
        left, held = min(1, len(self._failing) // _OTHERWISE), 0
        for trial in self._failing:
            holds = _holds(self._subject, *trial)
            left, held = left - (holds is False), held + bool(holds)
            if left < 0:
                return False
        return held > 0

    def _passes(self, invariant: Invariant) -> bool:
        """Whether a property passes its whole quick check."""
        return run_invariant(self._subject, invariant, PROFILES["quick"], shrink=False).ok


def _usual_output(subject: Subject) -> Tensor | None:
    """The output of a call without mask and cache; ``None`` if it raises."""
    case = subject.legal(Case((2,), 5, 5, 8, 8, 8))
    try:
        with limited(_TRIAL_SECONDS), torch.no_grad():
            return subject.output(*subject.build(case)).double()
    except (Exception, SystemExit, TooLong):
        return None


@functools.cache
def _caches() -> tuple[Any, ...]:
    """What keeps answers of subjects between checks."""
    modules = [m for name, m in sys.modules.items() if name.startswith("attnbench.invariants")]
    values = (value for module in modules for value in vars(module).values())
    return tuple(value for value in values if hasattr(value, "cache_clear"))


def _holds(subject: Subject, invariant: Invariant, case: Case) -> bool | None:
    """Whether a property holds at a case; ``None`` if nothing is said there."""
    try:
        with limited(_TRIAL_SECONDS):
            if subject.unsupported(case) is not None:
                return None
            invariant.check(subject, case)
    except (RefusalError, UnsatisfiedAssumption):
        return None
    except (Exception, SystemExit, TooLong):
        return False
    return True


def _schedule(subject: Subject, invariants: Iterable[Invariant]) -> list[_Trial]:
    """Some cases of each property, spread over its schedule."""
    found: list[_Trial] = []
    for invariant in invariants:
        if invariant.name in COMPILING or skip_reason(subject, invariant) is not None:
            continue
        legal = [
            case
            for part in space_of((invariant.cases or cases)(subject)).parts
            for raw in part.scheduled(0, brief=True)
            if (case := part.finished(raw)) is not None and case.q_len * case.kv_len <= _MOST_PAIRS
        ]
        step = -(-len(legal) // _CASES) or 1
        found += [(invariant, case) for case in legal[::step]]
    return found


def _text(place: _Place) -> str:
    """The lines that a change replaces, and those that it puts there."""
    before, after = place.source.lines, place.edit.applied(place.source.lines)
    numbers = [i for i, (one, two) in enumerate(zip(before, after, strict=True)) if one != two]
    name = Path(place.source.name).name
    olds = [f"- {name}:{i + 1}: {before[i].strip()}" for i in numbers]
    news = [f"+ {name}:{i + 1}: {after[i].strip()}" for i in numbers if after[i].strip()]
    is_less = place.edit.rank == REMOVAL
    return "\n".join([*olds, *news, *("this leaves something out, and is no repair",) * is_less])
