"""What the invariants on caches share: when they apply, their cases, and how they accuse."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from attnbench.cases.case import Case
from attnbench.cases.spaces import listed
from attnbench.checking.answer_faults import raised_text
from attnbench.checking.profiles import current_profile
from attnbench.errors import InvariantViolation
from attnbench.invariants.layers.cache_programs import Program
from attnbench.invariants.layers.program_comparison import Stage
from attnbench.invariants.layers.program_lines import lines_of
from attnbench.specs import Invariant
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["cache_cases", "cache_invariant", "has_cache", "near_window"]

_FEW = 4
"""Scheduled programs that are played in half types, and in float64."""


def near_window(subject: LayerSubject) -> int:
    """The declared window; a small one that a cache may have without saying so."""
    return subject.spec.window or 4


def has_cache(subject: Subject, *operations: str) -> str | None:
    """Why nothing can be said of a layer's cache; ``None`` if something can."""
    assert isinstance(subject, LayerSubject)
    cache = subject.spec.cache
    if cache is None:
        return "it has no cache"
    for name in operations:
        if getattr(cache, name) is None:
            return f"not tried: its CacheSpec has no {name}"
    return _unusable(subject) or _refusal(subject, operations)


@functools.lru_cache(maxsize=64)
def _unusable(subject: LayerSubject) -> str | None:
    with torch.random.fork_rng(devices=[]):
        try:
            case = subject.legal(Case((2,), 3, 3, 8, 8, 8))
            module, inputs = subject.build(case)
            with torch.no_grad():
                subject.call(module, inputs.query, None, subject.new_cache(module, 2))
        except (Exception, SystemExit) as error:
            return f"not run: {raised_text(subject, error)}; cached_calls_keep_the_contract tells"
    return None


@functools.lru_cache(maxsize=64)
def _refusal(subject: LayerSubject, operations: tuple[str, ...]) -> str | None:
    """Whether an operation refuses where nothing could be easier."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        case = subject.legal(Case((2,), 3, 3, 8, 8, 8))
        module, inputs = subject.build(case)
        _, cache = subject.call(module, inputs.query, None, subject.new_cache(module, 2))
        try:
            if "select" in operations:
                subject.select(cache, torch.tensor([1, 0], device=inputs.query.device))
            if "crop" in operations:
                subject.crop(cache, 2)
        except NotImplementedError as error:
            return f"refused: {' and '.join(operations)} raises NotImplementedError: {error}"
        except Exception:  # the check itself will tell
            return None
    return None


def cache_cases(subject: Subject) -> SearchStrategy[Case]:
    """Two cases in float32, and one in each other dtype; in quick, one and one in a half type."""
    case = subject.legal(Case((3,), 24, 24, 8, 8, 8))
    other = [d for d in ("bfloat16", "float16", "float64") if d in subject.dtypes]
    wide = subject.legal(case.replace(query_size=16, seed=1))
    if current_profile().name == "quick":
        other, wide = other[:1], case
    found = dict.fromkeys([case, wide, *(case.replace(dtype=d) for d in other)])
    return listed(*found)


def cache_invariant(
    name: str,
    statement: str,
    judged: str,
    scheduled: Callable[[LayerSubject], Sequence[Program]],
    applies: Callable[[Subject], str | None],
) -> Invariant:
    """An invariant that plays programs with caches.

    Args:
        name, statement, applies: of the invariant.
        judged: a key of :data:`attnbench.invariants.layers.state_machines.OPERATIONS`.
        scheduled: programs that are played first.
    """

    def check(subject: Subject, case: Case) -> None:
        from attnbench.invariants.layers.state_machines import explore  # brings Hypothesis: 0.2 s

        assert isinstance(subject, LayerSubject)
        wide = case.dtype == "float32" or "float32" not in subject.dtypes
        programs = scheduled(subject)
        stage = Stage(subject, case)
        found = explore(stage, judged, programs if wide else programs[:_FEW], drawn=wide)
        if found is not None:
            compared = {"lines": lines_of(subject, case, found)}
            raise InvariantViolation(found.message, error=found.error, compared=compared)

    return Invariant(
        name=name,
        statement=statement,
        check=check,
        kinds=("layer",),
        cases=cache_cases,
        applies=applies,
    )
