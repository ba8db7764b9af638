"""The laws that mechanisms bring pass what does not break them; the zoo has what does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnbench
from tests.invariant_runs import run


class HasNoParts(torch.nn.Module):
    def forward(self, query: Any, key: Any, value: Any, attn_mask: Any = None) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)


@pytest.mark.parametrize(
    ("law", "part"),
    [
        ("picks_one_key", "scoring"),
        ("samples_follow_soft_weights", "scoring"),
        ("only_window_has_weight", "edges"),
        ("looks_back_at_most_its_window", "window"),
        ("penalty_is_zero_iff_orthonormal", "penalty"),
    ],
)
def test_a_law_says_what_it_reads_of_a_module_that_lacks_it(law: str, part: str) -> None:
    spec = attnbench.MechanismSpec(
        name="bare",
        make=lambda *sizes: HasNoParts(),
        equal_sizes=True,
        laws=("pools_values", law),
        dtypes=("float32", "float64"),
    )
    outcome = run(spec, law, shrink=True)
    assert outcome.status == "failed"
    assert f"has no attribute {part!r}" in outcome.reason
