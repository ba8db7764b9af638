"""Invariants on calls with a cache: their outputs, however a sequence is cut into calls."""

from attnbench_plugins.properties.caches.checks import cache_invariant, has_cache

calls_may_be_cut_anywhere = cache_invariant(
    "split",
    "However a sequence is cut into calls with a cache, the outputs equal those of one call, and "
    "hidden stays as it is.",
    lambda subject: None if subject.spec.cache else "it has no cache",
)
calls_without_cache_leave_none = cache_invariant(
    "fresh",
    "A call without a cache, between calls with one, neither affects them nor is affected.",
    has_cache,
)
