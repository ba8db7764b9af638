"""An operation that a cache does not have is not tried."""

from __future__ import annotations

from dataclasses import replace

import pytest
from attnbench_zoo.right.layers import STATIC

import attnbench


@pytest.mark.parametrize("missing", ["select", "crop"])
def test_a_cache_without_an_operation_still_counts_its_slots(missing: str) -> None:
    spec = STATIC.spec
    assert spec.cache is not None
    cache = replace(spec.cache, **{missing: None})
    report = attnbench.check(
        replace(spec, cache=cache), profile="quick", invariants=["cache_length_counts_slots"]
    )
    assert report.ok, report.outcomes
