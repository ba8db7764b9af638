"""The search for a small change of a subject's source with which every property holds.

The search runs in a process of its own, since changed code may loop forever, or leave anything
behind. What it finds is no guess: all that failed was seen to hold with the change, and so did all
else, at some of its scheduled cases.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from hypothesis.errors import UnsatisfiedAssumption

from attnbench.cases.case import Case
from attnbench.cases.case_space import space_of
from attnbench.cases.case_strategies import cases
from attnbench.checking.mending.edit_context import Edit
from attnbench.checking.mending.edits import edits
from attnbench.checking.mending.running_code import RunLines, SourceFile
from attnbench.checking.mending.separate_process import first_answers
from attnbench.checking.outcomes import COMPILING, Outcome
from attnbench.checking.profiles import PROFILES, effort_of
from attnbench.checking.runner import seeded, skip_reason
from attnbench.errors import RefusalError
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

_SECONDS, _MORE_SECONDS = 20.0, 4.0
"""Most seconds of computing in a search, and most of them behind the first that is found."""

_LONGEST_SECONDS = 60.0
"""Most seconds of a search by the clock, as on a busy machine."""

_CASES, _MOST_PAIRS = 5, 2**12
"""Scheduled cases of each invariant at which a change has to hold, and the largest of them."""

_MOST_FOUND = 2
"""Changes of different lines that are shown."""

_APART = ("reference", "sizes", "extras", "supports", "settle")
"""Functions of a spec that say what is right, or when; they are not changed."""

_Trial = tuple[Invariant, Case]


class _Place(NamedTuple):
    """A change of a top-level definition in a file."""

    source: SourceFile
    definition: Any
    edit: Edit


def with_mends(
    outcomes: Iterable[Outcome], subject: Subject, invariants: Sequence[Invariant], last: str
) -> Iterator[Outcome]:
    """Pass on outcomes as they come, and the latest failure once more if a change mends all.

    Args:
        outcomes: those of a subject.
        subject: the subject.
        invariants: all that should hold.
        last: the invariant whose outcome comes last; the changes are looked for before it.
    """
    failures: list[Outcome] = []
    for outcome in outcomes:
        if outcome.failure is not None:
            failures.append(outcome)
        is_lost = any(one.failure is None or one.failure.device_lost for one in failures)
        if outcome.invariant == last and failures and not is_lost:
            found = mends(subject, invariants, failures)
            for failure in failures[-1:] if found else ():
                assert failure.failure is not None
                mended = replace(failure, failure=replace(failure.failure, mends=found))
                if failure is outcome:
                    outcome = mended
                else:
                    yield mended
        yield outcome


def mends(
    subject: Subject, invariants: Sequence[Invariant], outcomes: Iterable[Outcome]
) -> tuple[str, ...]:
    """The changes of a subject's source, as text, with each of which all that failed holds.

    Args:
        subject: the subject.
        invariants: all that should hold.
        outcomes: failures of the subject, and others.
    """
    by_name = {invariant.name: invariant for invariant in invariants}
    failing = [
        (by_name[outcome.invariant], Case.from_id(outcome.failure.case))
        for outcome in outcomes
        if outcome.invariant in by_name and outcome.failure and outcome.failure.case
    ]
    failing = [(one, case) for one, case in failing if one.name not in COMPILING]
    if not failing or subject.same_as or any(case.device != "cpu" for _, case in failing):
        return ()  # of two subjects that differ, either could be changed
    found = functools.partial(_found, subject, invariants, failing)
    return first_answers(found, seconds=_LONGEST_SECONDS)


def _found(
    subject: Subject, invariants: Sequence[Invariant], failing: Sequence[_Trial]
) -> Iterator[str]:
    """Yield changes with which all holds, those that go least far first."""
    end, shown = time.process_time() + _SECONDS, set[tuple[str, int]]()
    with seeded(), effort_of(PROFILES["quick"], None, shrink=False, explain=False):
        lines = RunLines(_apart(subject), {_code_of(i).co_filename for i, _ in failing})
        trials = sorted(_failing_again(subject, failing, lines), key=lambda one: one[0])
        first = [(invariant, case) for _, invariant, case in trials]
        others = _schedule(subject, invariants, {invariant.name for invariant, _ in first})
        for place in _places(lines) if first else ():
            if time.process_time() > end or len(shown) == _MOST_FOUND:
                return
            where = place.source.name, place.edit.start[0]
            if where not in shown and _mends(subject, place, first, others):
                end = end if shown else min(end, time.process_time() + _MORE_SECONDS)
                shown.add(where)
                yield _text(place)


def _code_of(invariant: Invariant) -> CodeType:
    code: CodeType = getattr(invariant.check, "__wrapped__", invariant.check).__code__
    return code


def _apart(subject: Subject) -> set[CodeType]:
    spec = subject.maker
    functions = [getattr(one, name, None) for name in _APART for one in (spec, subject.spec)]
    codes = (getattr(function, "__code__", None) for function in functions)
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
    """The changes of the lines that ran, those that go least far first."""
    found = []
    for file, ran in lines.ran.items():
        with contextlib.suppress(SyntaxError, OSError):  # of a notebook, say
            source = SourceFile(file)
            for definition in source.definitions:
                inside = range(definition.lineno, (definition.end_lineno or 0) + 1)
                reached = {line: names for line, names in ran.items() if line in inside}
                found += [
                    _Place(source, definition, edit)
                    for edit in edits(definition, source.lines, reached)
                ]
    return sorted(found, key=lambda place: place.edit.rank)


def _mends(
    subject: Subject,
    place: _Place,
    first: Iterable[_Trial],
    others: Iterable[_Trial],
) -> bool:
    """Whether all that failed holds with a change, and nothing else fails."""
    try:
        code = place.source.compiled(place.definition, place.edit.applied(place.source.lines))
    except (SyntaxError, ValueError):
        return False
    with place.source.running(code):
        for cache in _caches():
            cache.cache_clear()
        return all(_holds(subject, *trial) for trial in first) and not any(
            _holds(subject, *trial) is False for trial in others
        )


@functools.cache
def _caches() -> tuple[Any, ...]:
    """What keeps answers of subjects between checks."""
    modules = [m for name, m in sys.modules.items() if name.startswith("attnbench.invariants")]
    values = (value for module in modules for value in vars(module).values())
    return tuple(value for value in values if hasattr(value, "cache_clear"))


def _holds(subject: Subject, invariant: Invariant, case: Case) -> bool | None:
    """Whether an invariant holds at a case; ``None`` if nothing is said there."""
    if subject.unsupported(case) is not None:
        return None
    try:
        invariant.check(subject, case)
    except (RefusalError, UnsatisfiedAssumption):
        return None
    except (Exception, SystemExit):
        return False
    return True


def _schedule(subject: Subject, invariants: Iterable[Invariant], first: set[str]) -> list[_Trial]:
    """Some cases of each invariant; those come first that are likely to fail."""
    found: list[_Trial] = []
    for invariant in sorted(invariants, key=lambda one: one.name not in first):
        if invariant.name in COMPILING or skip_reason(subject, invariant) is not None:
            continue
        legal = [
            case
            for part in space_of((invariant.cases or cases)(subject)).parts
            for raw in part.scheduled(0, brief=True)
            if (case := part.finished(raw)) is not None and case.q_len * case.kv_len <= _MOST_PAIRS
        ]
        found += [(invariant, case) for case in legal[:: max(1, len(legal) // _CASES)]]
    return found


def _text(place: _Place) -> str:
    """The lines that a change replaces, and those that it puts there."""
    before, after = place.source.lines, place.edit.applied(place.source.lines)
    numbers = [i for i, (one, two) in enumerate(zip(before, after, strict=True)) if one != two]
    name = Path(place.source.name).name
    olds = [f"- {name}:{i + 1}: {before[i].strip()}" for i in numbers]
    news = [f"+ {name}:{i + 1}: {after[i].strip()}" for i in numbers if after[i].strip()]
    return "\n".join([*olds, *news])
