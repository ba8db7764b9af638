"""The operation that a report names where others reach a query of a function that should not."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import MechanismSpec, ScoringSpec


class Pooled(nn.Module):
    """Attention in which a norm, a mean or a number of others counts, or none of these."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        if self.mistake == "queries":
            query = query / query.norm(dim=(-2, -1), keepdim=True)
        if self.mistake == "keys":
            value = value - value.mean(-2, keepdim=True).tanh()
        if self.mistake in ("items", "heads") and query.dim() > 3:
            value = value - value.amax(0 if self.mistake == "items" else -3, keepdim=True).tanh()
        factor = torch.ones(()) * (key.shape[1] if self.mistake == "count" else 1)
        scores = factor * query @ key.mT / math.sqrt(query.shape[-1])
        if attn_mask is not None:
            hidden = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -math.inf) if hidden else scores + attn_mask
        return scores.softmax(-1) @ value


_ALONE, _ITEM = "query_alone_equals_query_among_others", "item_alone_equals_item_in_batch"


@pytest.mark.parametrize(
    ("mistake", "invariant", "told"),
    [
        ("queries", _ALONE, r"by which other queries reach the outputs is linalg_vector_norm at"),
        ("keys", "masked_slots_are_inert", r"by which hidden keys reach the outputs is mean at"),
        ("keys", "masking_equals_deleting", r"by which hidden keys reach the outputs is mean at"),
        ("keys", "future_does_not_leak", r"by which later keys reach the outputs is mean at"),
        ("heads", "heads_are_independent", r"by which other heads reach the outputs is amax at"),
        ("items", _ITEM, r"by which other items reach the outputs is amax at"),
        ("count", _ITEM, r"in which the number of other heads counts is mul at"),
    ],
)
def test_the_operation_that_others_reach_is_named(mistake: str, invariant: str, told: str) -> None:
    specs = [
        MechanismSpec(
            name=name,
            make=lambda *sizes, name=name: Pooled(name),
            equal_sizes=True,
            dtypes=("float64", "float32"),
            conventions={"empty_rows": "nan"},
        )
        for name in (mistake, "right")
    ]
    found, right = (
        attnbench.check(spec, profile="quick", invariants=[invariant]).outcomes[0] for spec in specs
    )
    assert found.status == "failed"
    assert right.status == "passed"
    assert re.search(rf"the first operation {told} test_reached.py:\d+: ", found.reason)


class Aspects(nn.Module):
    """Scores of features that are cut into parts as if the parts came before the tokens."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        parts = (t.reshape(*t.shape[:-2], 2, t.shape[-2], -1) for t in (query, key))
        one, other = (part.tanh() for part in parts)
        return (one @ other.mT).sum(-3)


def test_the_view_that_mixes_tokens_is_named() -> None:
    spec = ScoringSpec(
        name="mine",
        make=lambda *sizes: Aspects(),
        equal_sizes=True,
        sizes=lambda sizes: sizes.replace(query_size=4, key_size=4),
        dtypes=("float64", "float32"),
    )
    names = ["masked_slots_are_inert"]
    (found,) = attnbench.check(spec, profile="quick", invariants=names).outcomes
    assert found.status == "failed"
    assert "hidden keys reach the outputs is view at test_reached.py:" in found.reason


class Counting(nn.Module):
    """Scores that rightly depend on how many heads or keys there are, and wrongly on others."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake = mistake

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        scores = query @ key.mT * math.log(2 + key.shape[-2])
        if query.dim() > 3:
            slopes = torch.arange(1, query.shape[-3] + 1) / query.shape[-3]
            scores = scores * slopes[:, None, None].to(scores)
        if attn_mask is not None:
            far = -1e2 if self.mistake == "hidden" else -math.inf
            hidden = attn_mask.dtype == torch.bool
            added = attn_mask.logical_not().to(scores) * -1e2 if hidden else attn_mask
            added = added.where(added > -1e2, far)
            scores = scores + added
        pooled = scores.softmax(-1) @ value
        if self.mistake == "heads" and query.dim() > 3 and query.shape[-2] == key.shape[-2]:
            pooled = pooled + value.mean((-3, -2), keepdim=True)
        return pooled


@pytest.mark.parametrize(
    ("mistake", "invariant"),
    [("heads", "heads_are_independent"), ("hidden", "masked_slots_are_inert")],
)
def test_no_use_of_a_number_is_told_where_only_what_others_hold_is_changed(
    mistake: str, invariant: str
) -> None:
    spec = MechanismSpec(
        name="counting",
        make=lambda *sizes: Counting(mistake),
        equal_sizes=True,
        dtypes=("float64", "float32"),
        conventions={"empty_rows": "nan"},
    )
    (found,) = attnbench.check(spec, profile="quick", invariants=[invariant]).outcomes
    assert found.status == "failed"
    assert "the first operation" not in found.reason
