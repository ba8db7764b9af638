from __future__ import annotations

from typing import Any

import pytest
import torch
from attnbench_plugins.laws import variance
from torch import Tensor, nn

from attnbench import ScoringSpec
from tests.invariant_runs import by_name, case_of, run

VARIANCE = by_name(variance)["unit_variance"]


class Bilinear(nn.Module):
    def __init__(self, query_size: int, key_size: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(std * torch.randn(query_size, key_size))
        self.scale = float((query_size * key_size) ** -0.25)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.scale * (query @ self.weight @ key.mT)


def _bilinear(std: Any) -> ScoringSpec:
    return ScoringSpec(
        name="bilinear_by_hand",
        make=lambda query_size, key_size: Bilinear(query_size, key_size, std(query_size, key_size)),
        laws=("unit_variance",),
    )


def _right_std(query_size: int, key_size: int) -> float:
    return float((query_size * key_size) ** -0.25)


@pytest.mark.parametrize("seed", range(2))
def test_unit_variance_passes_the_right_scale(seed: int) -> None:
    outcome = run(_bilinear(_right_std), VARIANCE, seed=seed)
    assert outcome.status == "passed", outcome.reason


def test_unit_variance_finds_the_textbook_bilinear_and_says_by_what_to_scale_it() -> None:
    outcome = run(_bilinear(lambda q, k: 1.0), VARIANCE)
    assert outcome.status == "failed"
    assert "variance of scores = " in outcome.reason
    assert "but should be 1 ±" in outcome.reason


def test_unit_variance_finds_a_scale_by_one_size_where_sizes_differ() -> None:
    outcome = run(_bilinear(lambda q, k: q**-0.5), VARIANCE)
    assert outcome.status == "failed"
    case = case_of(outcome)
    assert case.query_size != case.key_size


def test_unit_variance_looks_at_few_cases_and_needs_all_of_them() -> None:
    assert VARIANCE.cases is not None
    outcome = run(_bilinear(_right_std), VARIANCE)
    assert outcome.cases == 3
    assert "3 scheduled, 0 drawn" in outcome.reason


def test_unit_variance_is_skipped_where_it_is_not_declared() -> None:
    outcome = run(ScoringSpec(name="free", make=lambda q, k: Bilinear(q, k, 9.0)), VARIANCE)
    assert (outcome.status, outcome.reason) == ("skipped", "law not declared")
