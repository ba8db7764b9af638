"""The search for a program that shows an error of a cache: stored, scheduled and drawn ones.

One cause is reported under one name: what a program shows counts for the property that it violates
most simply.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import astuple, replace
from typing import TYPE_CHECKING

from attnbench import AttnbenchError
from attnbench.testing import Effort
from attnbench_plugins.properties.caches.player import Player
from attnbench_plugins.properties.caches.program import Program, Step, programs, shrunk
from attnbench_plugins.properties.caches.properties import PROPERTIES, operations
from attnbench_plugins.properties.caches.stage import FoundError, Stage

if TYPE_CHECKING:
    from attnbench.testing import Failures

_FEW = 4
"""Number of scheduled programs if none are drawn: in half types, and in float64."""

_EXAMPLES = {"quick": 20, "default": 60, "thorough": 400}
_STEPS = {"quick": 8, "default": 10, "thorough": 16}


def explore(stage: Stage, judged: str, drawn: bool, effort: Effort) -> FoundError | None:
    """Find the shortest program that violates a property; ``None`` if none was found.

    Args:
        stage: stage of the case.
        judged: a key of :data:`attnbench_plugins.properties.caches.properties.PROPERTIES`.
        drawn: whether to draw programs in addition to the scheduled ones.
        effort: which programs are tried first, and whether a shorter one is looked for.
    """
    held, kept = PROPERTIES[judged], effort.failures
    key = f"attnbench {stage.subject.stored_as} {held.invariant} program"
    known: dict[Program, FoundError | None] = {}

    def verdict(program: Program) -> FoundError | None:
        program = restricted(stage, judged, program)
        if program not in known:
            found = played(stage, judged, program)
            another = found is not None and is_of_another(stage, judged, found)
            known[program] = None if another else found
        return known[program]

    def fails(program: Program) -> bool:
        return verdict(program) is not None

    program = kept.again(key, read, fails) if kept is not None and drawn else None
    if program is None:
        scheduled = held.scheduled(stage.subject)
        program = next(filter(fails, scheduled if drawn else scheduled[:_FEW]), None)
    if program is None and drawn:
        from hypothesis import Phase  # imported in checks alone, as by the next line

        from attnbench.testing import find_simplest

        profile = effort.profile.name
        program = find_simplest(
            programs(operations(stage.subject, judged), stage.subject.width, _STEPS[profile]),
            fails,
            phases=(Phase.generate,),
            examples=_EXAMPLES[profile],
            seed=f"{key} {stage.case.seed}",
        )
    if program is None:
        return None
    if effort.shrink:
        error = verdict(program)
        program = program if error is None else error.steps  # without those after the wrong one
        program = shrunk(program, fails)
        keep(kept, key, program)
    return verdict(program)


def read(text: str) -> Program:
    """A program as :func:`keep` wrote it."""
    return tuple(
        Step(kind, track, count, tuple(rows)) for kind, track, count, rows in json.loads(text)
    )


def keep(kept: Failures | None, key: str, program: Program) -> None:
    """Store a failing program for the next time."""
    if kept is not None:
        kept.save(key, json.dumps([astuple(step) for step in program]))


def played(stage: Stage, judged: str, program: Program) -> FoundError | None:
    """Play a program; returns the error that it shows, or ``None``."""
    player = Player(stage, judged)
    try:
        for step in program:
            player.play(step)
    except FoundError as found:
        return found
    except AttnbenchError as error:
        return FoundError(tuple(player.program), str(error))
    return None


def restricted(stage: Stage, judged: str, program: Program) -> Program:
    """A program without the steps that a property does not use."""
    has = operations(stage.subject, judged)
    left = [step for step in program if step.kind in ("begin", "append", *has)]
    if "pads" not in has:
        left = [replace(step, rows=()) if step.kind == "begin" else step for step in left]
    if "ragged" not in has:
        left = [replace(step, rows=()) if step.kind == "append" else step for step in left]
    return tuple(left)


def is_of_another(stage: Stage, judged: str, found: FoundError) -> bool:
    """Whether another invariant reports what a program shows."""
    stage = stage.wide()  # rounding hides least there
    if judged in ("alone", "ragged"):
        return any(played(stage, "split", p) is not None for p in _unpadded(stage, found.steps))
    others = ("split", "fresh", "rollback", "rows", "owner", "alone")
    return judged == "mixed" and any(_is_violated(stage, name) for name in others)


def _unpadded(stage: Stage, program: Program) -> Iterator[Program]:
    """Yield the same calls without padding: of all rows, and of each row alone."""
    yield restricted(stage, "split", program)
    begin, *rest = program
    for row in range(begin.count):
        alone, left = [Step("begin", count=1)], begin.rows[row] if begin.rows else 0
        for step in rest:
            count = step.rows[row] if step.rows else step.count
            skipped = min(left, count)
            left -= skipped
            alone.append(replace(step, count=count - skipped, rows=()))
        yield tuple(alone)


def _is_violated(stage: Stage, judged: str) -> bool:
    """Whether a scheduled program of a property, with what the cache has, shows an error."""
    held = PROPERTIES[judged]
    if any(getattr(stage.subject.spec.cache, name, True) is None for name in held.operations):
        return False
    programs = (restricted(stage, judged, program) for program in held.scheduled(stage.subject))
    return any(played(stage, judged, program) is not None for program in programs)
