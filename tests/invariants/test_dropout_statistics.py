from __future__ import annotations

from typing import Any

import pytest
import torch
from attnbench_zoo.twins.attention import ATTENTION, Attention
from torch import Tensor

from attnbench.invariants import dropout_statistics
from tests.invariant_runs import by_name, mutant, run

INVARIANTS = by_name(dropout_statistics)


class DroppedBeforeSoftmax(Attention):
    def forward(self, *args: Any, dropout_p: float = 0.0, **keywords: Any) -> Any:
        self.dropout_p = dropout_p
        return super().forward(*args, **keywords)

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        return super().hide(self.drop(scores, self.dropout_p), allowed)


class NotRescaled(Attention):
    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        dropped = super().drop(weights, dropout_p)
        return dropped * (1 - dropout_p) if self.training else dropped


class NothingDropped(Attention):
    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        return weights


class TooFewDropped(Attention):
    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        if not self.training or not dropout_p:
            return weights
        kept = torch.rand(weights.shape) > 0.9 * dropout_p
        return weights * kept / (1 - dropout_p)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("dropout_keeps_the_mean", DroppedBeforeSoftmax),
        ("dropout_keeps_the_mean", NotRescaled),
        ("dropout_keeps_the_mean", NothingDropped),
        ("dropout_acts_on_weights", DroppedBeforeSoftmax),
        ("dropout_acts_on_weights", NotRescaled),
        ("dropout_acts_on_weights", TooFewDropped),
    ],
)
def test_a_wrong_dropout_is_found(name: str, make: type) -> None:
    right = run(ATTENTION.spec, INVARIANTS[name])
    assert right.status == "passed", right.reason
    wrong = run(mutant(make), INVARIANTS[name])
    assert wrong.status == "failed"
    assert "but" in wrong.reason
