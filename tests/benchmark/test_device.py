"""What no call can undercut: only products that every implementation has to do."""

from __future__ import annotations

import pytest

from attnbench import Case
from attnbench.benchmark.device import Ceilings, impossible_s
from attnbench.subject.lookup import resolve

LIMITS = Ceilings(1e18, 1e9, 1e18, 1e9)  # all time is that of products


@pytest.mark.parametrize(
    ("name", "products"),
    [("scaled_dot", 2 * 8 * 8 * 4), ("dot/fused", 2 * 8 * 8 * 4), ("concat_linear/one_row", 0)],
)
def test_equal_rows_may_be_pooled_once(name: str, products: int) -> None:
    (subject,) = resolve(name)
    _, inputs = subject.build(Case((1,), 8, 8, 4, 4, 4, mask="none"))
    assert impossible_s(subject, inputs, 0, LIMITS) == products / 1e9 / 2
