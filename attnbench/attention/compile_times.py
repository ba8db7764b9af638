"""The time that compilers take, and whether their results came from a cache.

torch reports what ``torch.compile`` does; a kernel that compiles by other means reports it with
:func:`note_compiled`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

_HITS = (("inductor", "fxgraph_cache_hit"), ("aot_autograd", "autograd_cache_hit"))


@dataclass
class Compiled:
    """The compilations in a context of :func:`compilations`.

    Args:
        seconds: time that compilers took, including loading from caches.
        loaded: number of programs and graphs that came from a cache.
        made: number of those that were compiled.
    """

    seconds: float = 0.0
    loaded: int = 0
    made: int = 0

    @property
    def source(self) -> str:
        """``compiled`` if anything was compiled, ``cache`` if all of it was cached, else empty."""
        return "compiled" if self.made else "cache" if self.loaded else ""


_OPEN: ContextVar[Compiled | None] = ContextVar("attnbench_compiled", default=None)


def note_compiled(seconds: float, *, cached: bool) -> None:
    """Report that a kernel compiled something, or loaded it from a cache.

    Args:
        seconds: the time it took.
        cached: whether it came from a cache, such as that of an earlier process.
    """
    total = _OPEN.get()
    if total is not None:
        total.seconds += seconds
        total.loaded += cached
        total.made += not cached


@contextmanager
def compilations() -> Iterator[Compiled]:
    """Collect what is compiled in this context; complete after it ends."""
    total = Compiled()
    before = _by_torch()
    token = _OPEN.set(total)
    try:
        yield total
    finally:
        _OPEN.reset(token)
        seconds, graphs, hits = (now - old for now, old in zip(_by_torch(), before, strict=True))
        total.seconds += seconds
        total.loaded += int(min(hits, graphs))
        total.made += int(max(0, graphs - hits))


def _by_torch() -> tuple[float, float, float]:
    """Seconds that torch.compile took in this process, its graphs, and those from a cache."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return 0.0, 0.0, 0.0
    hits = sum(utils.counters[group][name] for group, name in _HITS)
    graphs = utils.counters["stats"]["unique_graphs"]
    return float(utils.calculate_time_spent()["total_wall_time"]), float(graphs), float(hits)
