"""A state machine for the caches of a layer, with rules that depend on the checked property.

Hypothesis draws programs step by step, and each step is played at once. A failing program, drawn or
scheduled, is shrunk and stored by :mod:`attnbench.invariants.caches.program_drawing`.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from attnbench.checking.hypothesis_engine import Failures
from attnbench.checking.profiles import current_profile
from attnbench.errors import AttnbenchError
from attnbench.invariants.caches.attribution import is_of_another, played, restricted
from attnbench.invariants.caches.player import Player
from attnbench.invariants.caches.program import MOST_TRACKS, Program, Step, legalised
from attnbench.invariants.caches.program_drawing import keep, shrunk, stored
from attnbench.invariants.caches.properties import PROPERTIES, operations
from attnbench.invariants.caches.stage import TOKENS, FoundError, Stage

_FEW = 4
"""Number of scheduled programs if none are drawn: in half types, and in float64."""

_EXAMPLES = {"quick": 20, "default": 60, "thorough": 400}
_STEPS = {"quick": 8, "default": 10, "thorough": 16}


def explore(
    stage: Stage, judged: str, drawn: bool, kept: Failures | None, shrink: bool
) -> FoundError | None:
    """Find the shortest program that violates a property; ``None`` if none was found.

    Args:
        stage: stage of the case.
        judged: a key of :data:`attnbench.invariants.caches.properties.PROPERTIES`.
        drawn: whether to draw programs in addition to the scheduled ones.
        kept: store of failing programs, which are tried again.
        shrink: whether to look for a shorter program that fails.
    """
    held = PROPERTIES[judged]
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
        program = _drawn(stage, judged)
    if program is None:
        return None
    if shrink:
        program = shrunk(program, key, fails)
        keep(kept, key, program)
    return verdict(program)


def _drawn(stage: Stage, judged: str) -> Program | None:
    profile = current_profile().name
    machine = seeded(stage.case.seed)(_machine(stage, judged))
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
        return found.program
    except Flaky:  # not reproducible; cached_calls_keep_the_contract reports it
        return None
    return None


def _machine(stage: Stage, judged: str) -> type[RuleBasedStateMachine]:  # noqa: C901 -- a class
    allowed = operations(stage.subject, judged)
    capacity = min(stage.subject.capacity, TOKENS)
    window = stage.subject.width or 4
    near = (window - 1, window, window + 1, 2 * window, 2 * window + 1)
    counts = st.sampled_from(sorted({n for n in (1, 1, 2, 3, 5, 7, *near) if 1 <= n <= 17}))
    tracks = st.integers(0, MOST_TRACKS - 1)

    class Caches(RuleBasedStateMachine):
        """Sequences with caches of one module."""

        def __init__(self) -> None:
            super().__init__()
            self.player = Player(stage, judged)

        def do(self, step: Step) -> None:
            """Play a step if it is legal now; stop if it violates another property."""
            player = self.player
            program = legalised((*player.program, step), capacity)
            if player.over or len(program) <= len(player.program):
                return
            try:
                player.play(program[-1])
            except AttnbenchError as error:
                found = FoundError(tuple(player.program), str(error))
            except FoundError as error:
                found = error
            else:
                return
            player.over = is_of_another(stage, judged, found)
            if not player.over:
                raise found

        @initialize(
            rows=st.integers(1, 3), pads=st.lists(st.integers(0, 6), min_size=3, max_size=3)
        )
        def begin(self, rows: int, pads: list[int]) -> None:
            """Begin the first sequence."""
            padded = tuple(pads[:rows]) if "pads" in allowed else ()
            self.do(Step("begin", count=rows, rows=padded))

        @rule(count=counts, track=tracks)
        def append(self, count: int, track: int) -> None:
            """Append a chunk."""
            self.do(Step("append", track % max(1, len(self.player.tracks)), count))

        @precondition(lambda _: "ragged" in allowed)
        @rule(rows=st.lists(st.integers(0, 5), min_size=1, max_size=3), track=tracks)
        def append_ragged(self, rows: list[int], track: int) -> None:
            """Append a chunk with another number of tokens in each row."""
            step = Step("append", track % max(1, len(self.player.tracks)), max(rows), tuple(rows))
            self.do(step)

        @precondition(lambda _: "select" in allowed)
        @rule(rows=st.lists(st.integers(0, 3), min_size=1, max_size=4), track=tracks)
        def select(self, rows: list[int], track: int) -> None:
            """Select rows, with repeats."""
            self.do(Step("select", track % max(1, len(self.player.tracks)), rows=tuple(rows)))

        @precondition(lambda _: "crop" in allowed)
        @rule(length=st.integers(0, 24), track=tracks)
        def crop(self, length: int, track: int) -> None:
            """Keep the first slots."""
            self.do(Step("crop", track % max(1, len(self.player.tracks)), length))

        @precondition(lambda self: "fork" in allowed and len(self.player.tracks) < MOST_TRACKS)
        @rule(track=tracks)
        def fork(self, track: int) -> None:
            """Copy a cache."""
            self.do(Step("fork", track % max(1, len(self.player.tracks))))

        @precondition(lambda self: "fork" in allowed and len(self.player.tracks) < MOST_TRACKS)
        @rule(rows=st.integers(1, 3), pads=st.lists(st.integers(0, 6), min_size=3, max_size=3))
        def interleave(self, rows: int, pads: list[int]) -> None:
            """Begin another sequence."""
            padded = tuple(pads[:rows]) if "pads" in allowed else ()
            self.do(Step("begin", count=rows, rows=padded))

        @precondition(lambda _: "without" in allowed)
        @rule(count=counts)
        def without(self, count: int) -> None:
            """Call without a cache in between."""
            self.do(Step("without", count=count))

    return Caches
