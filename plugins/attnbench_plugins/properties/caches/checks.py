"""Common parts of the invariants on caches: when they apply, their cases, and their failures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from attnbench import Case, Invariant, Subject
from attnbench.strategies import CaseStrategy, listed
from attnbench.testing import LayerSubject, current_effort, current_profile, raised_text
from attnbench_plugins.properties import HINTS
from attnbench_plugins.properties.caches.program import in_words
from attnbench_plugins.properties.caches.properties import PROPERTIES
from attnbench_plugins.properties.caches.search import explore, played
from attnbench_plugins.properties.caches.stage import Stage, stage_of


def has_cache(subject: LayerSubject, *operations: str) -> str | None:
    """The reason why the invariant does not apply to a layer's cache, or ``None``."""
    cache = subject.spec.cache
    if cache is None:
        return "it has no cache"
    for name in operations:
        if getattr(cache, name) is None:
            return f"not tried: its CacheSpec has no {name}"
    return _obstacle(subject, operations)


@functools.lru_cache(maxsize=256)
def _obstacle(subject: LayerSubject, operations: tuple[str, ...]) -> str | None:
    """Why the easiest call with a cache raises, or an operation refuses even there."""
    answer = None
    for length in (2, 0):  # a cache that cannot be cropped may still be emptied
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            try:
                module, inputs = subject.build(subject.legal(Case((2,), 3, 3, 8, 8, 8)))
                _, cache = subject.call(module, inputs.query, None, subject.new_cache(module, 2))
            except (Exception, SystemExit) as error:
                text = raised_text(subject, error)
                return f"not run: {text}; calls_may_be_cut_anywhere tells"
            try:
                if "select" in operations:
                    subject.select(cache, torch.tensor([1, 0], device=inputs.query.device))
                if "crop" in operations:
                    subject.crop(cache, length)
            except NotImplementedError as error:
                answer = f"refused: {' and '.join(operations)} raises NotImplementedError: {error}"
            except Exception:  # the check itself reports it
                return None
            else:
                return None
    return answer


def cache_cases(
    subject: Subject, dtypes: Sequence[str] = ("bfloat16", "float16", "float64")
) -> CaseStrategy:
    """Two cases in float32 and one in each other dtype; for quick one, and one in a half type."""
    case = subject.legal(Case((3,), 24, 24, 8, 8, 8))
    found = [case.replace(dtype=dtype) for dtype in dtypes if dtype in subject.dtypes]
    if current_profile().name == "quick":
        found = found[:1]
    else:
        found.insert(0, subject.legal(case.replace(query_size=16, seed=1)))
    return listed(*dict.fromkeys([case, *found]))


def cache_invariant(
    judged: str, statement: str, applies: Callable[[Any], str | None], *, law: bool = False
) -> Invariant:
    """An invariant that plays programs with caches.

    Args:
        judged: a key of :data:`attnbench_plugins.properties.caches.properties.PROPERTIES`.
        statement, applies, law: fields of the invariant.
    """

    def check(subject: Subject, case: Case) -> None:
        assert isinstance(subject, LayerSubject)
        drawn = case.dtype == "float32" or "float32" not in subject.dtypes
        effort = current_effort()
        stage = stage_of(subject, case)
        found = explore(stage, judged, drawn, effort)
        if found is not None:

            def again(subject: Subject) -> None:
                assert isinstance(subject, LayerSubject)
                error = played(Stage(subject, case), judged, found.steps)
                if error is not None:
                    raise error

            compared = {**(found.compared or {}), "again": again}
            told = found.reworded(str(found), program=in_words(found.steps), compared=compared)
            raise told from found.__cause__

    return Invariant(
        name=PROPERTIES[judged].invariant,
        statement=statement,
        hint=HINTS[PROPERTIES[judged].invariant],
        check=check,
        kinds=("layer",),
        cases=functools.partial(cache_cases, dtypes=()) if judged == "mixed" else cache_cases,
        applies=applies,
        law=law,
    )
