"""Mistakes that explain what a subject gets wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attnbench_zoo.mutants import MUTANTS
from attnbench_zoo.twins.attention import ATTENTION
from attnbench_zoo.twins.options import OPTIONS
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench.adapters import flash
from attnbench.checking.cause.witnesses import explanations, likeliest
from attnbench.subject.lookup import resolve

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


@pytest.mark.parametrize(
    ("mutant", "mistake"),
    [
        ("polarity_inverted", "mask_inverted"),
        ("mask_never_applied", "all_masks_ignored"),
        ("causal_top_left", "causality_top_left"),
        ("length_one_too_long", "length_one_too_long"),
        ("empty_row_gives_the_mean", "empty_rows_mean"),
        ("scale_missing", "scale_missing"),
        ("grouped_heads_tiled", "groups_tiled"),
        ("softmax_over_queries", "softmax_over_the_queries"),
        ("streaming_causal_top_left", "causality_top_left"),
    ],
)
def test_a_known_mistake_is_named_by_what_it_makes(mutant: str, mistake: str) -> None:
    (subject,) = resolve(BY_NAME[mutant].spec)
    assert explanations(subject)[:1] == (mistake,)


@pytest.mark.parametrize("spec", [ATTENTION.spec, OPTIONS.spec, "scaled_dot", "additive"])
def test_a_right_implementation_is_explained_by_nothing(spec: Any) -> None:
    (subject,) = resolve(spec)
    assert explanations(subject) == ()


def test_what_would_make_right_outputs_wrong_comes_last() -> None:
    counts = {"one": (3, 2), "other": (3, 0), "rare": (1, 0), "common": (3, 9)}
    assert likeliest(4, counts) == ["other", "one"]


def opposite(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """A mask that says True = hidden; rows without keys are NaN, as softmax leaves them."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if attn_mask is not None:
        scores = scores.masked_fill(attn_mask.bool(), -torch.inf)
    return scores.softmax(-1) @ value


def test_a_mask_of_the_opposite_meaning_is_told_though_rows_without_keys_are_nan() -> None:
    report = attnbench.check(opposite, style="sdpa", profile="quick")
    first = str(report).splitlines()[1]
    assert first.startswith("opposite: the mask is read with the opposite meaning")


def one_too_much(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Attention of grouped heads, forward only, plus 1."""
    query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
    output = scaled_dot_product_attention(
        query, key, value, mask, is_causal=causal, enable_gqa=True
    )
    return 1 + output.transpose(1, 2)


def test_wrong_outputs_of_grouped_heads_are_looked_into() -> None:
    conventions = {"gradients": False, "hidden_slots": "finite", "masks": ("boolean",)}
    (subject,) = resolve(flash(one_too_much, dtypes=("float32",), conventions=conventions))
    assert explanations(subject) == ()
