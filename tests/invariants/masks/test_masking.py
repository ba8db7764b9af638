from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attnbench_zoo.right.attention import Attention
from torch import Tensor, nn

from attnbench.adapters import sdpa
from tests.invariant_runs import mutant, run


class EmptyRowsGetTheMean(Attention):
    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        empty = ~allowed.any(-1, keepdim=True)
        return hidden.softmax(-1).masked_fill(~allowed & ~empty, 0.0)


@pytest.mark.parametrize("base", [Attention, EmptyRowsGetTheMean])
def test_a_bias_behind_may_be_left_of_rows_without_keys(base: type[Attention]) -> None:
    class Projected(base):  # type: ignore[misc, valid-type]
        def __init__(self, *sizes: int) -> None:
            super().__init__(*sizes)
            self.bias = nn.Parameter(torch.ones(()))

        def forward(self, *args: Any, **keywords: Any) -> Any:
            output = super().forward(*args, **keywords)
            if isinstance(output, tuple):
                return output[0] + self.bias, output[1]
            return output + self.bias

    found = run(mutant(Projected), "empty_rows_give_zeros")
    assert found.status == ("passed" if base is Attention else "failed"), found.reason


def scored_in_the_querys_dtype(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """Scores beyond float16 are infinite in it; rows without a score give zeros."""
    scores = query * query.shape[-1] ** -0.5 @ key.mT
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    dead = scores.isneginf().all(-1, keepdim=True)
    return scores.masked_fill(dead, 0.0).softmax(-1).masked_fill(dead, 0.0) @ value


def zeroed_where_nan(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    """The same, where rows with an infinite score are zeros as well."""
    scores = query * query.shape[-1] ** -0.5 @ key.mT
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1).nan_to_num(0.0) @ value


@pytest.mark.parametrize("function", [scored_in_the_querys_dtype, zeroed_where_nan])
def test_hidden_keys_whose_scores_overflow_are_no_matter_of_the_mask(function: Any) -> None:
    spec = sdpa(function, name="narrow")
    outcome = run(spec, "hidden_keys_stay_hidden_at_extreme_scores")
    assert outcome.status == "passed", outcome.reason


def by_distance(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    """A query without keys gives NaN."""
    queries, keys = query.shape[-2], key.shape[-2]
    places = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    scores = query @ key.mT - places.abs()
    scores = scores if attn_mask is None else scores.masked_fill(~attn_mask, -torch.inf)
    return scores.softmax(-1) @ value


def test_a_query_that_is_left_no_key_may_be_nan_where_only_distances_count() -> None:
    conventions = {"positions": "relative", "hidden_slots": "finite", "masks": ("boolean",)}
    spec = sdpa(by_distance, name="distances", conventions={**conventions, "empty_rows": "nan"})
    outcome = run(spec, "leading_padding_equals_deleting")
    assert outcome.status == "passed", outcome.reason
