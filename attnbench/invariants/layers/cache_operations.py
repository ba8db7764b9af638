"""Invariants on operations of a cache: selections, crops, copies, and other caches."""

from __future__ import annotations

from collections.abc import Iterable

from attnbench.hookspecs import hookimpl
from attnbench.invariants.caches.checks import cache_invariant, has_cache
from attnbench.specs import Invariant


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants on the operations of a cache."""
    yield cache_invariant(
        "rows",
        "Selecting rows of a cache, in any order and with repeats, equals selecting the sequences.",
        lambda subject: has_cache(subject, "select"),
    )
    yield cache_invariant(
        "rollback",
        "Cropping a cache and going on equals never having gone further; a crop that is refused "
        "leaves the cache as it was.",
        lambda subject: has_cache(subject, "crop"),
    )
    yield cache_invariant(
        "owner",
        "Two caches of one module, and a cache and its deepcopy, do not affect each other.",
        has_cache,
    )
    yield cache_invariant(
        "ledger",
        "The length of a cache is the number of slots appended and not cropped.",
        lambda subject: has_cache(subject, "length"),
    )
    yield cache_invariant(
        "mixed",
        "Chunks, selections, crops, copies, other sequences and calls without a cache may follow "
        "one another in any order.",
        has_cache,
    )
