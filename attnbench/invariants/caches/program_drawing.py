"""Failing programs: how Hypothesis makes them shorter, and how they are stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import astuple

from hypothesis import Phase
from hypothesis import strategies as st

from attnbench.cases.drawing import mostly_last
from attnbench.checking import hypothesis_engine
from attnbench.checking.hypothesis_engine import Failures
from attnbench.invariants.caches.program import KINDS, Program, Step

_PLAYS = 300
"""Most programs that are played to find a shorter one that fails."""


@st.composite
def _parts_of(draw: st.DrawFn, program: Program) -> Program:
    """Programs with some steps left out and others made simpler; mostly the program itself."""
    fields = sum(5 + len(step.rows) for step in program)
    made = []
    for step in program:
        kept = draw(mostly_last((False, True), fields))
        kind = draw(mostly_last(KINDS[: KINDS.index(step.kind) + 1], fields))
        track = draw(mostly_last(range(step.track + 1), fields))
        count = draw(mostly_last(range(step.count + 1), fields))
        length = draw(mostly_last(range(len(step.rows) + 1), fields))
        rows = [draw(mostly_last(range(row + 1), fields)) for row in step.rows]
        if kept:
            made.append(Step(kind, track, count, tuple(rows[:length])))
    return tuple(made)


def stored(kept: Failures | None, key: str, fails: Callable[[Program], bool]) -> Program | None:
    """The first stored program that fails again; those that do not are forgotten."""
    if kept is None:
        return None
    for text in kept.stored(key):
        try:
            program = tuple(
                Step(kind, track, count, tuple(rows))
                for kind, track, count, rows in json.loads(text)
            )
        except (ValueError, TypeError):
            kept.note_unreadable()
            continue
        if fails(program):
            return program
        kept.delete(key, text)
    return None


def shrunk(program: Program, key: str, fails: Callable[[Program], bool]) -> Program:
    """The shortest program found that fails like this one."""
    left = _PLAYS

    def still_fails(candidate: Program) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    stages = (Phase.generate, Phase.shrink)
    found = hypothesis_engine.search(_parts_of(program), still_fails, phases=stages, seed=key)
    return program if found is None else found


def keep(kept: Failures | None, key: str, program: Program) -> None:
    """Store a failing program for the next time."""
    if kept is not None:
        kept.save(key, json.dumps([astuple(step) for step in program]))
