"""Drawing cases with Hypothesis: many in one example, since an example costs more than a check."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from attnbench.cases import Case

__all__ = ["drawn_cases", "explore"]

_SETTINGS: dict[str, Any] = {
    "database": None,
    "deadline": None,
    "report_multiple_bugs": False,
    "print_blob": False,
    "verbosity": Verbosity.quiet,
    "suppress_health_check": list(HealthCheck),
}
_MOST = 50
"""Cases of one example."""


def drawn_cases(
    strategy: st.SearchStrategy[Case], name: str, seed: int | None, count: int
) -> Iterator[Case]:
    """Cases of a strategy, each once, the simplest one first, until no new one is found.

    Args:
        strategy: of cases.
        name: of the invariant; each draws other cases.
        seed: draws others; ``None`` is a seed of its own.
        count: how many are wanted; more are drawn when asked for.
    """
    seen: set[Case] = set()
    for number in itertools.count():
        key = random.Random(f"{name} {seed} {number}").getrandbits(64)  # noqa: S311 -- no secret
        new = [case for case in _batch(strategy, key, min(count, _MOST)) if case not in seen]
        if not new:
            return
        for case in new:
            if case not in seen:
                seen.add(case)
                yield case


@st.composite
def _many(draw: st.DrawFn, strategy: st.SearchStrategy[Case], count: int) -> list[Case]:
    # Hypothesis tries the simplest example first, in which all cases would be the same
    count = count if draw(st.integers(0, 2**16 - 1)) else 1
    return [draw(strategy) for _ in range(count)]


def _batch(strategy: st.SearchStrategy[Case], key: int, count: int) -> list[Case]:
    """The simplest case, and as many others as are asked for."""
    found: list[Case] = []

    def collect(cases: list[Case]) -> None:
        found.extend(cases)

    once = settings(max_examples=2, phases=(Phase.generate,), **_SETTINGS)
    run: Callable[[], None] = seeded(key)(once(given(_many(strategy, count))(collect)))
    with contextlib.suppress(Unsatisfiable):  # what was found until then is found
        run()
    return found


def explore(
    strategy: st.SearchStrategy[Case],
    name: str,
    seed: int | None,
    count: int,
    check: Callable[[Case], None],
    *,
    shrink: bool,
) -> None:
    """Check cases of a strategy of which nothing is known; Hypothesis shrinks the one that fails.

    Args:
        strategy, name, seed, count: as for :func:`drawn_cases`.
        check: raises, or rejects a case.
        shrink: look for a smaller case that fails.

    Raises:
        Unsatisfiable: every case was rejected.
        Exception: what ``check`` raised at the smallest case.
    """
    key = random.Random(f"{name} {seed}").getrandbits(64)  # noqa: S311 -- no secret
    phases = (Phase.generate, Phase.target, *([Phase.shrink] if shrink else []))
    thorough = settings(max_examples=count, phases=phases, **_SETTINGS)

    def checked(case: Case) -> None:
        check(case)

    run: Callable[[], None] = seeded(key)(thorough(given(strategy)(checked)))
    run()
