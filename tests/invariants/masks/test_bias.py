from typing import Any

import pytest
import torch
from torch import nn

import attnbench


class Attention(nn.Module):
    """Right attention; a subclass changes what it does with a floating mask."""

    def bias(self, mask: Any, scores: Any) -> Any:
        return scores + mask

    def forward(self, query: Any, key: Any, value: Any, attn_mask: Any = None) -> Any:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        elif attn_mask is not None:
            scores = self.bias(attn_mask, scores)
        return scores.softmax(-1) @ value


class Dropped(Attention):
    def bias(self, mask: Any, scores: Any) -> Any:
        return scores.masked_fill(mask == float("-inf"), float("-inf"))


class Flipped(Attention):
    def bias(self, mask: Any, scores: Any) -> Any:
        return scores - mask


class Halved(Attention):
    def bias(self, mask: Any, scores: Any) -> Any:
        return scores + 0.5 * mask


def outcome(make: Any, invariant: Any, laws: Any = ("pools_values",)) -> Any:
    spec = attnbench.MechanismSpec(
        name="mine", make=lambda q, k, v: make(), equal_sizes=True, laws=laws
    )
    (found,) = attnbench.check(spec, profile="quick", invariants=[invariant]).outcomes
    return found


def test_a_bias_that_is_added_passes() -> None:
    assert outcome(Attention, "bias_is_added_to_scores").status == "passed"


@pytest.mark.parametrize("make", [Dropped, Flipped, Halved])
def test_a_bias_that_is_dropped_flipped_or_scaled_fails(make: Any) -> None:
    found = outcome(make, "bias_is_added_to_scores")
    assert found.status == "failed"
    assert "random floating mask" in found.reason


def test_weights_that_may_be_means_over_heads_are_not_judged() -> None:
    assert outcome(Attention, "bias_is_added_to_scores", laws=()).status == "skipped"
