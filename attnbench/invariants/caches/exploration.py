"""The search for a program that shows an error of a cache: stored, scheduled and drawn ones."""

from __future__ import annotations

from hypothesis import Phase

from attnbench.checking import hypothesis_engine
from attnbench.checking.profiles import Effort
from attnbench.invariants.caches.attribution import is_of_another, played, restricted
from attnbench.invariants.caches.program import Program
from attnbench.invariants.caches.program_drawing import keep, programs, shrunk, stored
from attnbench.invariants.caches.properties import PROPERTIES, operations
from attnbench.invariants.caches.stage import FoundError, Stage

_FEW = 4
"""Number of scheduled programs if none are drawn: in half types, and in float64."""

_EXAMPLES = {"quick": 20, "default": 60, "thorough": 400}
_STEPS = {"quick": 8, "default": 10, "thorough": 16}


def explore(stage: Stage, judged: str, drawn: bool, effort: Effort) -> FoundError | None:
    """Find the shortest program that violates a property; ``None`` if none was found.

    Args:
        stage: stage of the case.
        judged: a key of :data:`attnbench.invariants.caches.properties.PROPERTIES`.
        drawn: whether to draw programs in addition to the scheduled ones.
        effort: which programs are tried first, and whether a shorter one is looked for.
    """
    held, kept = PROPERTIES[judged], effort.failures
    key = f"attnbench {stage.subject.name} {held.invariant} program"
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

    program = stored(kept, key, fails) if drawn else None
    if program is None:
        scheduled = held.scheduled(stage.subject)
        program = next(filter(fails, scheduled if drawn else scheduled[:_FEW]), None)
    if program is None and drawn:
        profile = effort.profile.name
        program = hypothesis_engine.search(
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
        program = shrunk(program, key, fails)
        keep(kept, key, program)
    return verdict(program)
