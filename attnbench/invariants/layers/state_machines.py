"""One state machine for the caches of a layer; the property that is judged says which rules it has.

Hypothesis draws programs step by step, each step is played at once, and a failing program is made
shorter, with those of the schedule, by :func:`attnbench.invariants.layers.cache_programs.shortest`.
"""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from attnbench.checking.profiles import current_profile
from attnbench.errors import AttnbenchError
from attnbench.invariants.layers.cache_programs import Program, Step, legalised, shortest
from attnbench.invariants.layers.program_comparison import TOKENS, FoundError, Player, Stage

__all__ = ["OPERATIONS", "explore"]

OPERATIONS = {
    "split": (),
    "rows": ("select",),
    "rollback": ("crop",),
    "owner": ("fork", "begin"),
    "fresh": ("without",),
    "alone": ("pads",),
    "ledger": ("select", "crop"),
}
"""Beside ``append``, what is done where a property is judged."""

_EXAMPLES = {"quick": 20, "default": 60, "thorough": 400}
_STEPS = {"quick": 8, "default": 10, "thorough": 16}


def explore(
    stage: Stage, judged: str, scheduled: Iterable[Program], drawn: bool
) -> FoundError | None:
    """The shortest program found that violates a property; ``None`` if none does.

    Args:
        stage: of the case.
        judged: a key of :data:`OPERATIONS`.
        scheduled: programs that are tried first.
        drawn: whether some are drawn, too.
    """
    capacity = min(stage.subject.capacity, TOKENS)
    found = None
    for program in scheduled:
        found = played(stage, judged, legalised(program, capacity))
        if found is not None:
            break
    if found is None and drawn:
        found = _drawn(stage, judged)
    if found is None:
        return None
    short = shortest(found.program, capacity, lambda p: played(stage, judged, p) is not None)
    return played(stage, judged, short) or found


def played(stage: Stage, judged: str, program: Program) -> FoundError | None:
    """What a program shows to be wrong; ``None`` if nothing."""
    player = Player(stage, judged)
    try:
        for step in program:
            player.play(step)
    except FoundError as found:
        return found
    except AttnbenchError as error:
        return FoundError(tuple(player.program), str(error))
    return None


def _drawn(stage: Stage, judged: str) -> FoundError | None:
    machine = _machine(stage, judged)
    profile = current_profile().name
    machine = seeded(stage.case.seed)(machine)
    try:
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=_EXAMPLES[profile],
                stateful_step_count=_STEPS[profile],
                phases=(Phase.generate,),
                database=None,
                deadline=None,
                print_blob=False,
                verbosity=Verbosity.quiet,
                suppress_health_check=list(HealthCheck),
            ),
        )
    except FoundError as found:
        return found
    return None


def _machine(stage: Stage, judged: str) -> type[RuleBasedStateMachine]:
    allowed = OPERATIONS[judged]
    capacity = min(stage.subject.capacity, TOKENS)
    window = stage.subject.spec.window or 4
    near = (window - 1, window, window + 1, 2 * window, 2 * window + 1)
    counts = st.sampled_from(sorted({n for n in (1, 1, 2, 3, 5, 7, *near) if 1 <= n <= 17}))

    class Caches(RuleBasedStateMachine):
        """Sequences with caches of one module."""

        def __init__(self) -> None:
            super().__init__()
            self.player = Player(stage, judged)

        def do(self, step: Step) -> None:
            """Play a step if it is legal now."""
            player = self.player
            program = legalised((*player.program, step), capacity)
            if not player.over and len(program) > len(player.program):
                try:
                    player.play(program[-1])
                except AttnbenchError as error:
                    raise FoundError(tuple(player.program), str(error)) from error

        @initialize(
            rows=st.integers(1, 3), pads=st.lists(st.integers(0, 6), min_size=3, max_size=3)
        )
        def begin(self, rows: int, pads: list[int]) -> None:
            """Begin the first sequence."""
            padded = tuple(pads[:rows]) if "pads" in allowed else ()
            self.do(Step("begin", count=rows, rows=padded))

        @rule(count=counts, track=st.integers(0, 2))
        def append(self, count: int, track: int) -> None:
            """Append a chunk."""
            self.do(Step("append", track % max(1, len(self.player.tracks)), count))

        @precondition(lambda _: "select" in allowed)
        @rule(rows=st.lists(st.integers(0, 3), min_size=1, max_size=4), track=st.integers(0, 2))
        def select(self, rows: list[int], track: int) -> None:
            """Select rows, with repeats."""
            self.do(Step("select", track % max(1, len(self.player.tracks)), rows=tuple(rows)))

        @precondition(lambda _: "crop" in allowed)
        @rule(length=st.integers(0, 24), track=st.integers(0, 2))
        def crop(self, length: int, track: int) -> None:
            """Keep the first slots."""
            self.do(Step("crop", track % max(1, len(self.player.tracks)), length))

        @precondition(lambda _: "fork" in allowed)
        @rule(track=st.integers(0, 2))
        def fork(self, track: int) -> None:
            """Copy a cache."""
            self.do(Step("fork", track % max(1, len(self.player.tracks))))

        @precondition(lambda self: "begin" in allowed and len(self.player.tracks) < 3)
        @rule(rows=st.integers(1, 3))
        def interleave(self, rows: int) -> None:
            """Begin another sequence."""
            self.do(Step("begin", count=rows))

        @precondition(lambda _: "without" in allowed)
        @rule(count=counts)
        def without(self, count: int) -> None:
            """Call without a cache in between."""
            self.do(Step("without", count=count))

    return Caches
