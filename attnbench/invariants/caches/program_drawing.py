"""Programs that Hypothesis draws, and failing ones: how it makes them shorter, where they are kept.

What is drawn or made shorter may have steps that are not legal, which are left out when it is
played.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import astuple, replace

from hypothesis import Phase
from hypothesis import strategies as st

from attnbench.cases.space_parts import mostly_last
from attnbench.checking import hypothesis_engine
from attnbench.checking.hypothesis_engine import Failures
from attnbench.invariants.caches.program import KINDS, MOST_TRACKS, Program, Step

_PLAYS = 300
"""Most programs that are played to find a shorter one that fails."""


def programs(has: Collection[str], window: int | None, length: int) -> st.SearchStrategy[Program]:
    """Programs of some steps after the first.

    Args:
        has: operations besides ``append``.
        window: a number of tokens around which chunks are drawn.
        length: number of steps after the first.
    """
    near = window or 4
    chunks = {1, 2, 3, 5, 7, near - 1, near, near + 1, 2 * near, 2 * near + 1}
    counts = st.sampled_from(sorted(n for n in chunks if 1 <= n <= 17))
    tracks = st.integers(0, MOST_TRACKS - 1 if "fork" in has else 0)
    pads = st.tuples(*[st.integers(0, 6)] * 3) if "pads" in has else st.just(())

    def chosen(least: int, most: int, largest: int) -> st.SearchStrategy[tuple[int, ...]]:
        numbers = st.lists(st.integers(0, largest), min_size=least, max_size=most)
        return numbers.map(lambda drawn: tuple(drawn))

    begin = st.builds(Step, st.just("begin"), count=st.integers(1, 3), rows=pads)
    drawn = {
        "append": [st.builds(Step, st.just("append"), tracks, counts)],
        "ragged": [
            st.builds(
                lambda track, rows: Step("append", track, max(rows), rows), tracks, chosen(1, 3, 5)
            )
        ],
        "select": [st.builds(Step, st.just("select"), tracks, rows=chosen(1, 4, 3))],
        "crop": [
            st.builds(Step, st.just("crop"), tracks, st.integers(*bounds))
            for bounds in ((0, 24), (-3, -1))
        ],
        "fork": [st.builds(Step, st.just("fork"), tracks), begin],
        "without": [st.builds(Step, st.just("without"), count=counts)],
    }
    some = [step for name, steps in drawn.items() if name in ("append", *has) for step in steps]

    def numbered(first: Step, rest: list[Step]) -> Program:
        """The steps, each of a sequence that has begun."""
        found = [first]
        for step in rest:
            begun = sum(earlier.kind in ("begin", "fork") for earlier in found)
            found.append(replace(step, track=step.track % begun))
        return tuple(found)

    rest = st.lists(st.one_of(some), min_size=length, max_size=length)
    return st.builds(numbered, begin, rest)


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


def _without_parts(program: Program, fails: Callable[[Program], bool]) -> Program:
    """The program without the runs of steps, long ones first, without which it fails as well."""
    size = len(program) // 2
    while size:
        start = 1
        while start < len(program):
            shorter = program[:start] + program[start + size :]
            if fails(shorter):
                program = shorter
            else:
                start += size
        size //= 2
    return program


def shrunk(program: Program, key: str, fails: Callable[[Program], bool]) -> Program:
    """The shortest program found that fails like this one."""
    program = _without_parts(program, fails)
    known = {program: True}

    def still_fails(candidate: Program) -> bool:
        if candidate not in known:  # what has failed goes on to fail
            known[candidate] = len(known) < _PLAYS and fails(candidate)
        return known[candidate]

    stages = (Phase.generate, Phase.shrink)
    found = hypothesis_engine.search(_parts_of(program), still_fails, phases=stages, seed=key)
    return program if found is None else found


def keep(kept: Failures | None, key: str, program: Program) -> None:
    """Store a failing program for the next time."""
    if kept is not None:
        kept.save(key, json.dumps([astuple(step) for step in program]))
