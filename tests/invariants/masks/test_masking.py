from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attnbench_zoo.right.attention import Attention
from attnbench_zoo.right.heads import HEADS
from torch import Tensor, nn

import attnbench
from attnbench import MechanismSpec, ScoringSpec
from attnbench.adapters import sdpa
from attnbench.invariants.masks import empty_rows, hidden_slots, mask_forms, masking, positions
from tests.invariant_runs import by_name, mutant, run

INVARIANTS = by_name(masking, hidden_slots, mask_forms, empty_rows, positions)


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

    found = run(mutant(Projected), INVARIANTS["empty_rows_give_zeros"])
    assert found.status == ("passed" if base is Attention else "failed"), found.reason


@pytest.mark.parametrize("name", INVARIANTS)
def test_multi_head_attention_with_projections_passes(name: str) -> None:
    outcome = run(HEADS.spec, INVARIANTS[name])
    assert outcome.status == "passed", outcome.reason


class TiedLengths(Attention):
    """Self-attention of some libraries: as many queries as keys."""


def test_a_subject_of_tied_lengths_is_not_asked_to_change_one_alone() -> None:
    tied = mutant(TiedLengths, sizes=lambda sizes: sizes.replace(kv_len=sizes.q_len))
    outcome = run(tied, INVARIANTS["masking_equals_deleting"])
    assert outcome.status == "skipped"
    assert "kv_len cannot be chosen alone" in outcome.reason
    assert run(tied, INVARIANTS["masked_slots_are_inert"]).status == "passed"


def test_rows_without_keys_are_skipped_where_only_more_queries_than_keys_would_make_them() -> None:
    tied = mutant(
        TiedLengths,
        sizes=lambda sizes: sizes.replace(kv_len=sizes.q_len),
        conventions={"masks": ()},
    )
    for name in ("empty_rows_give_zeros", "empty_rows_have_finite_gradients"):
        outcome = run(tied, INVARIANTS[name])
        assert outcome.status == "skipped"
        assert "no mask that it takes leaves a query without keys" in outcome.reason


class TorchAttention(nn.Module):
    """torch's own, which lets NaN in padding through."""

    def __init__(self, *sizes: int) -> None:
        super().__init__()

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)


def test_torchs_attention_passes_deleting_and_is_told_of_nan_in_its_padding() -> None:
    spec = mutant(TorchAttention, accepts=(), reference=None)
    passed = run(spec, INVARIANTS["masking_equals_deleting"])
    assert passed.status == "passed", passed.reason
    assert run(spec, INVARIANTS["masked_slots_are_inert"]).status == "passed"
    found = run(spec, INVARIANTS["hidden_slots_may_hold_nan"], shrink=True)
    assert found.status == "failed"
    assert "output" in found.reason
    assert "= nan, but the call without has" in found.reason


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


def zeroed_where_nan(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
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
    outcome = run(spec, INVARIANTS["hidden_keys_stay_hidden_at_extreme_scores"])
    assert outcome.status == "passed", outcome.reason


class Distance(nn.Module):
    """Scores fall with the distance; queries are counted from 0, or depend on each other."""

    def __init__(self, mixed: bool) -> None:
        super().__init__()
        self.mixed = mixed

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        q_len, kv_len = query.shape[-2], key.shape[-2]
        shift = query.sum(-1, keepdim=True).cumsum(-2) if self.mixed else 0.0
        start = kv_len - q_len if self.mixed else 0
        own = torch.arange(start, start + q_len, device=query.device)[:, None]
        return shift * key.mT[..., :1, :] - (own - torch.arange(kv_len, device=key.device)).abs()


class NearKeys(nn.Module):
    """Weights fall with the distance, of which queries are counted from 0."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        scores = Distance(mixed=False)(query, key).to(query.dtype)
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        return scores.softmax(-1) @ value


def test_a_step_of_a_mechanism_that_is_given_its_causality_tells_of_positions() -> None:
    conventions = {"positions": "relative", "masks": ("boolean",)}
    spec = MechanismSpec(
        name="near", make=lambda *sizes: NearKeys(), equal_sizes=True, conventions=conventions
    )
    outcome = run(spec, INVARIANTS["decode_equals_prefill"])
    assert outcome.status == "failed"


class Turned(nn.Module):
    """Rotary angles of halves; ``mixed``: those of keys are of neighbours."""

    def __init__(self, mixed: bool) -> None:
        super().__init__()
        self.mixed = mixed

    def turn(self, tensor: Tensor, start: int, neighbours: bool) -> Tensor:
        half = tensor.shape[-1] // 2
        steps = torch.arange(start, start + tensor.shape[-2], device=tensor.device)[:, None]
        angles = (steps * 0.3 ** torch.arange(half, device=tensor.device)).to(tensor.dtype)
        one, two = (tensor[..., ::2], tensor[..., 1::2]) if neighbours else tensor.chunk(2, -1)
        turned = one * angles.cos() - two * angles.sin(), two * angles.cos() + one * angles.sin()
        return torch.stack(turned, -1).flatten(-2) if neighbours else torch.cat(turned, -1)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        query = self.turn(query, key.shape[-2] - query.shape[-2], False)
        return torch.nn.functional.scaled_dot_product_attention(
            query, self.turn(key, 0, self.mixed), value, attn_mask
        )


@pytest.mark.parametrize(("mixed", "status"), [(False, "passed"), (True, "failed")])
def test_who_declares_relative_positions_is_held_to_distances(mixed: bool, status: str) -> None:
    spec = MechanismSpec(
        name="turned",
        make=lambda *sizes: Turned(mixed),
        equal_sizes=True,
        sizes=lambda s: s.replace(
            query_size=s.query_size + s.query_size % 2, key_size=s.query_size + s.query_size % 2
        ),
        dtypes=("float32", "float64"),
        conventions={"positions": "relative", "masks": ("boolean",), "hidden_slots": "finite"},
    )
    names = ["leading_padding_equals_deleting"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert [outcome.status for outcome in report.outcomes] == [status], str(report)


def by_distance(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """A query without keys gives NaN."""
    queries, keys = query.shape[-2], key.shape[-2]
    places = torch.arange(keys - queries, keys)[:, None] - torch.arange(keys)
    scores = query @ key.mT - places.abs()
    scores = scores if attn_mask is None else scores.masked_fill(~attn_mask, -torch.inf)
    return scores.softmax(-1) @ value


def test_a_query_that_is_left_no_key_may_be_nan_where_only_distances_count() -> None:
    conventions = {"positions": "relative", "hidden_slots": "finite", "masks": ("boolean",)}
    spec = sdpa(by_distance, name="distances", conventions={**conventions, "empty_rows": "nan"})
    report = attnbench.check(spec, profile="quick", invariants=["leading_padding_equals_deleting"])
    assert [outcome.status for outcome in report.outcomes] == ["passed"], str(report)


@pytest.mark.parametrize("mixed", [False, True])
def test_a_step_fails_where_positions_or_other_queries_count(mixed: bool) -> None:
    spec = ScoringSpec(name="distance", make=lambda *sizes: Distance(mixed), equal_sizes=True)
    outcome = run(spec, INVARIANTS["decode_equals_prefill"])
    assert outcome.status == "failed"


class WholeTiles(nn.Module):
    """Causality at the bottom right, but where queries and keys fill whole tiles."""

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, *,
        is_causal: bool = False,
    ) -> Tensor:  # fmt: skip
        lengths = query.shape[-2], key.shape[-2]
        offset = 0 if all(length % 32 == 0 for length in lengths) else lengths[1] - lengths[0]
        seen = torch.ones(lengths, dtype=torch.bool).tril(offset if is_causal else max(lengths))
        seen = seen if attn_mask is None else seen & attn_mask
        return nn.functional.scaled_dot_product_attention(query, key, value, seen)


def test_causality_ends_at_the_last_key_where_tiles_are_whole() -> None:
    spec = MechanismSpec(
        name="whole",
        make=lambda *sizes: WholeTiles(),
        equal_sizes=True,
        accepts=("is_causal",),
        conventions={"masks": ("boolean",)},
    )
    outcome = run(spec, INVARIANTS["decode_equals_prefill"])
    assert outcome.failure is not None
