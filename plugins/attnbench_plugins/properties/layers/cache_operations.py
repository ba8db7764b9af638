"""Invariants on operations of a cache: selections, crops, copies, and other caches."""

from __future__ import annotations

from attnbench_plugins.properties.caches.checks import cache_invariant, has_cache

selected_rows_go_on_as_their_sequences = cache_invariant(
    "rows",
    "Selecting rows of a cache, in any order and with repeats, equals selecting the sequences.",
    lambda subject: has_cache(subject, "select"),
)
cropped_slots_are_forgotten = cache_invariant(
    "rollback",
    "Cropping a cache and going on equals never having gone further; a crop that is refused "
    "leaves the cache as it was.",
    lambda subject: has_cache(subject, "crop"),
)
caches_are_independent = cache_invariant(
    "owner",
    "Two caches of one module, and a cache and its deepcopy, do not affect each other.",
    has_cache,
)
cache_length_counts_slots = cache_invariant(
    "ledger",
    "The length of a cache is the number of slots appended and not cropped.",
    lambda subject: has_cache(subject, "length"),
)
cache_operations_combine = cache_invariant(
    "mixed",
    "Chunks, selections, crops, copies, other sequences and calls without a cache may follow "
    "one another in any order.",
    has_cache,
)
