"""Drawing cases with Hypothesis: many in one example, since an example costs more than a check."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from attnbench.cases.case import Case
from attnbench.cases.spaces import Drawn

__all__ = ["drawn_cases", "explore"]

_SETTINGS: dict[str, Any] = {
    "database": None,
    "deadline": None,
    "report_multiple_bugs": False,
    "print_blob": False,
    "verbosity": Verbosity.quiet,
    "suppress_health_check": list(HealthCheck),
}
_AT_ONCE = 32
"""Cases of one example."""


def drawn_cases(drawn: Drawn, name: str, seed: int | None) -> Iterator[Case]:
    """Cases of a strategy, each once, the simplest one first, until no new one is found.

    Args:
        drawn: of the strategy.
        name: of the invariant; each draws other cases.
        seed: draws others; ``None`` is a seed of its own.
    """
    seen: set[Case] = set()
    for number in itertools.count():
        key = random.Random(f"{name} {seed} {number}").getrandbits(64)  # noqa: S311 -- no secret
        before = len(seen)
        for data in _pieces(key, drawn.size):
            case = drawn.case_of(data)
            if case is not None and case not in seen:
                seen.add(case)
                yield case
        if len(seen) == before:
            return


def _pieces(key: int, size: int) -> Iterator[bytes]:
    """Bytes for one case after the other, those of the simplest first; drawn as one string."""
    found: list[bytes] = []

    def collect(data: bytes) -> None:
        found.append(data)

    once = settings(max_examples=2, phases=(Phase.generate,), **_SETTINGS)
    drawing = st.binary(min_size=_AT_ONCE * size, max_size=_AT_ONCE * size)
    run: Callable[[], None] = seeded(key)(once(given(drawing)(collect)))
    run()
    simplest, *rest = found  # Hypothesis tries the simplest example first: zeros
    yield simplest[:size]
    for data in rest:
        yield from (data[start : start + size] for start in range(0, len(data), size))


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
        strategy: of cases.
        name, seed: as for :func:`drawn_cases`.
        count: how many are wanted.
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
