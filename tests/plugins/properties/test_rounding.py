from __future__ import annotations

import math

import pytest
import torch
from attnbench_plugins.adapters.adaptation import spec_of
from attnbench_zoo.right.attention import Attention
from torch import Tensor, nn

from attnbench import check
from tests.invariant_runs import mutant, run


def _plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    weights = torch.einsum("blhd,bshd->bhls", query * query.shape[-1] ** -0.5, key).softmax(-1)
    return torch.einsum("bhls,bshd->blhd", weights, value)


def test_a_sum_in_float32_is_no_sum_in_a_half_type() -> None:
    name = "rounding_has_no_bias"
    report = check(_plain, style="flash", invariants=[name], profile="quick", dtypes=["float32"])
    assert report.ok, str(report)


@pytest.mark.parametrize("least", [-math.inf, -1e5, -5e4])
def test_a_running_maximum_begins_below_all_scores(least: float) -> None:
    class FromLeast(Attention):
        def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
            largest = hidden.amax(-1, keepdim=True).clamp(min=least)
            powers = (hidden - largest.masked_fill(largest.isneginf(), 0.0)).exp()
            sums = powers.sum(-1, keepdim=True)
            return powers / sums.masked_fill(sums == 0.0, 1.0)

    outcome = run(mutant(FromLeast), "common_shift_of_scores_changes_nothing")
    assert outcome.status == ("failed" if least > -1e5 else "passed"), outcome.reason


class Small(nn.Module):
    """All scores are nearly 0, so that each weight is rounded to the same."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Nearly the mean of the values."""
        return (1e-5 * self.q(query) @ self.k(key).mT).softmax(-1) @ value


def test_weights_that_are_alike_and_so_rounded_alike_are_no_bias() -> None:
    report = check(spec_of(Small), profile="quick", invariants=["rounding_has_no_bias"])
    [outcome] = report.outcomes
    assert (outcome.status, "rounded alike" in outcome.reason) == ("skipped", True), outcome.reason
