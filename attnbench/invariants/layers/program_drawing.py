"""Programs as choices of Hypothesis, which shrinks failing ones and stores them in its database.

A step is five integers and a program is a list of steps; smaller integers are simpler.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import Phase
from hypothesis import strategies as st
from hypothesis.database import ExampleDatabase

from attnbench.checking import hypothesis_engine
from attnbench.invariants.layers.cache_programs import KINDS, MOST_ROWS, Program, Step

__all__ = ["keep", "shrunk", "stored"]

_PLAYS = 300
"""Most programs that are played to find a shorter one that fails."""

_LONGEST, _MOST, _TRACKS, _BASE = 256, 1023, 7, 64


def _rows_of(number: int) -> tuple[int, ...]:
    """The rows encoded as the digits of a number; a 0 ends them."""
    rows = []
    while number:
        number, digit = divmod(number, _BASE)
        rows.append(max(0, digit - 1))
    return tuple(rows)


def _number_of(rows: tuple[int, ...]) -> int:
    return sum((min(row, _BASE - 2) + 1) * _BASE**place for place, row in enumerate(rows))


@st.composite
def _programs(draw: st.DrawFn, only: Program | None = None) -> Program:
    """Any program, or just one, by the choices that draw it among all others."""

    def chosen(most: int, own: int) -> int:
        return draw(st.integers(0, most) if only is None else st.integers(own, own))

    program = []
    for number in range(_LONGEST):
        own = only[number] if only is not None and number < len(only) else None
        if not chosen(1, int(own is not None)):
            break
        step = own or Step("append")
        program.append(
            Step(
                kind=KINDS[chosen(len(KINDS) - 1, KINDS.index(step.kind))],
                track=chosen(_TRACKS, step.track),
                count=chosen(_MOST, step.count),
                rows=_rows_of(chosen(_BASE**MOST_ROWS, _number_of(step.rows))),
            )
        )
    return tuple(program)


def stored(
    kept: ExampleDatabase | None, key: str, fails: Callable[[Program], bool]
) -> Program | None:
    """A stored program, if it fails again."""
    if kept is None or not any(kept.fetch(key.encode())):
        return None
    return hypothesis_engine.search(
        _programs(), fails, phases=hypothesis_engine.phases(Phase.reuse), kept=kept, key=key
    )


def shrunk(program: Program, key: str, fails: Callable[[Program], bool]) -> Program:
    """The shortest program found that fails like this one."""
    left, beginning = _PLAYS, hypothesis_engine.Beginning(key)

    def still_fails(candidate: Program) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and fails(candidate)

    hypothesis_engine.search(
        _programs(program), lambda _: True, phases=(Phase.generate,), kept=beginning, key=key
    )
    found = hypothesis_engine.search(
        _programs(),
        still_fails,
        phases=(Phase.reuse, Phase.shrink),
        kept=beginning,
        key=key,
    )
    return program if found is None else found


def keep(kept: ExampleDatabase | None, key: str, program: Program) -> None:
    """Store a failing program for the next time."""
    if kept is not None:
        hypothesis_engine.search(
            _programs(program), lambda _: True, phases=(Phase.generate,), kept=kept, key=key
        )
