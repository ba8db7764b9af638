from __future__ import annotations

from typing import Any

import pytest
import torch
from attnbench_zoo.twins.attention import Attention
from attnbench_zoo.twins.heads import HEADS
from torch import Tensor

from attnbench.invariants import shapes, symmetry
from tests.invariant_runs import assert_tells_apart, by_name, mutant, run

INVARIANTS = by_name(symmetry, shapes)


class LaterKeysPreferred(Attention):
    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().scores(query, key, scale) + 0.1 * torch.arange(key.shape[-2])


class LaterQueriesSharper(Attention):
    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        sharpness = 1 + 0.1 * torch.arange(query.shape[-2]).unsqueeze(-1)
        return super().scores(query, key, scale) * sharpness.to(query.dtype)


class CentredOnAllQueries(Attention):
    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        return super().scores(query - 0.5 * query.mean(-2, keepdim=True), key, scale)


class FirstItemsMaskForAll(Attention):
    def mask(self, query: Tensor, key: Tensor, *masks: Any) -> tuple[Tensor, Tensor]:
        allowed, bias = super().mask(query, key, *masks)
        return (allowed[:1].expand_as(allowed) if allowed.dim() > 2 else allowed), bias


class HeadsMixed(Attention):
    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        if query.dim() > 2:
            key = key + 0.5 * key.roll(1, -3)
        return super().scores(query, key, scale)


class SoftmaxOverTheThirdDimension(Attention):
    """Right for ``(B, L, S)``, wrong with heads."""

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        if hidden.dim() < 4:
            return super().normalise(hidden, allowed)
        return hidden.softmax(2).masked_fill(~allowed, 0.0)


class HeadsTiled(Attention):
    def expand_heads(self, tensor: Tensor, groups: int) -> Tensor:
        return torch.cat([tensor] * groups, -3)


class Squeezed(Attention):
    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, value).squeeze()


class SquareMaskTransposed(Attention):
    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Tensor | None, *others: Any
    ) -> tuple[Tensor, Tensor]:
        if attn_mask is not None and attn_mask.dim() == 2:
            attn_mask = attn_mask.mT if attn_mask.shape[0] == attn_mask.shape[1] else attn_mask
        return super().mask(query, key, attn_mask, *others)


MUTANTS = {
    "keys_permute_freely": LaterKeysPreferred,
    "queries_permute_freely": LaterQueriesSharper,
    "query_alone_equals_query_among_others": CentredOnAllQueries,
    "item_alone_equals_item_in_batch": FirstItemsMaskForAll,
    "leading_sizes_fold": SoftmaxOverTheThirdDimension,
    "grouped_heads_equal_expanded_heads": HeadsTiled,
    "masks_broadcast": SquareMaskTransposed,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_an_invariant_passes_the_right_attention_and_fails_its_mutant(name: str) -> None:
    assert_tells_apart(INVARIANTS[name], MUTANTS[name])


def test_every_invariant_on_symmetry_has_a_mutant_here() -> None:
    elsewhere = "output_has_shape_and_dtype"  # in test_numerics, with a mutant of its own
    assert set(INVARIANTS) == {*MUTANTS, elsewhere}


@pytest.mark.parametrize("name", sorted(set(INVARIANTS) - {"grouped_heads_equal_expanded_heads"}))
def test_multi_head_attention_with_projections_passes(name: str) -> None:
    outcome = run(HEADS.spec, INVARIANTS[name])
    assert outcome.status == "passed", outcome.reason


def test_a_subject_without_enable_gqa_is_not_asked_for_grouped_heads() -> None:
    outcome = run(HEADS.spec, INVARIANTS["grouped_heads_equal_expanded_heads"])
    assert (outcome.status, outcome.reason) == ("skipped", "does not accept enable_gqa")


def test_a_mask_beside_which_groups_are_wrong_is_found() -> None:
    class TiledUnderCausality(HeadsTiled):
        def forward(self, query: Tensor, *tensors: Any, **options: Any) -> Any:
            self.tiled = options.get("is_causal")
            return super().forward(query, *tensors, **options)

        def expand_heads(self, tensor: Tensor, groups: int) -> Tensor:
            if self.tiled:
                return super().expand_heads(tensor, groups)
            return tensor.repeat_interleave(groups, dim=-3)

    outcome = run(mutant(TiledUnderCausality), INVARIANTS["grouped_heads_equal_expanded_heads"])
    assert outcome.status == "failed"


class SoftmaxOverQueries(Attention):
    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-2).masked_fill(~allowed, 0.0)


def test_softmax_over_the_queries_is_seen_by_a_query_alone() -> None:
    outcome = run(
        mutant(SoftmaxOverQueries), INVARIANTS["query_alone_equals_query_among_others"], shrink=True
    )
    assert outcome.status == "failed"
    assert "for query" in outcome.reason
    assert "but the same query among all 2 has" in outcome.reason


@pytest.mark.parametrize("seed", [0, 7000, 90000])
@pytest.mark.parametrize("name", sorted(INVARIANTS))
def test_rounding_in_half_precision_accuses_nobody(name: str, seed: int) -> None:
    class NarrowAttention(Attention):
        """Everything in the dtype of the inputs, as many a kernel has it."""

        def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
            return (query * scale) @ key.mT

        def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
            return super().normalise(hidden, allowed)

    outcome = run(
        mutant(NarrowAttention, dtypes=("float16", "bfloat16")), INVARIANTS[name], seed=seed
    )
    assert outcome.status == "passed", outcome.reason
