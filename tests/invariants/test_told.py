"""What an invariant says where it fails, and why it is skipped where it does not apply."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from attnbench_zoo.right.attention import ATTENTION, Attention
from attnbench_zoo.right.heads import HEADS
from attnbench_zoo.right.layers import GROWING
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench import CacheSpec, KernelSpec, LayerSpec, ScoringSpec, adapters
from tests.invariant_runs import mutant, run, zoo

FAILURES = {
    "query_scaled_in_place": (
        "inputs_are_unchanged",
        r"query\[.*as before it: the caller's tensor was changed in place",
    ),
    "factors_kept_from_inference": (
        "gradient_modes_agree",
        "^after a call under inference_mode, the same call outside",
    ),
    "branch_on_values": (
        "fake_tensors_tell_the_shape",
        "^a call with fake tensors raised .*exempt the subject with a reason if this is not to be",
    ),
    "refused_after_the_crop": (
        "cropped_slots_are_forgotten",
        "was refused, which should leave the cache as it was",
    ),
    "softmax_over_queries": (
        "query_alone_equals_query_among_others",
        "for query .*but the same query among all",
    ),
    "segments_cast_to_bool": (
        "packed_equals_separate",
        r"packed output of documents of \[.*each document by itself has",
    ),
    "bilinear_weight_detached": (
        "gradients_reach_every_parameter",
        "the gradient that reaches parameter weight from the scores is none at all",
    ),
    "gradient_infinite_at_zero_weight": (
        "gradients_are_finite_at_extremes",
        r"gradient of output\.sum\(\) by .*but should be finite",
    ),
    "gaussian_expanded": (
        "translation_invariant",
        "query and key both moved by .*the call at the origin has",
    ),
    "dot_without_scale": ("unit_variance", "variance of scores = .*but should be 1 ±"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_says_what_was_compared(name: str) -> None:
    invariant, told = FAILURES[name]
    outcome = run(zoo(name), invariant)
    assert outcome.status == "failed"
    assert re.search(told, outcome.reason, re.DOTALL), outcome.reason


def refuse(cache: object, length: int) -> None:
    raise NotImplementedError("a cache of this kind cannot be cropped")


def cropped(crop: Any) -> LayerSpec:
    assert isinstance(GROWING.spec, LayerSpec)
    assert GROWING.spec.cache is not None
    return replace(GROWING.spec, cache=CacheSpec(new=GROWING.spec.cache.new, crop=crop))


def tied(**more: Any) -> Any:
    """Self-attention of some libraries: as many queries as keys."""
    return mutant(Attention, sizes=lambda sizes: sizes.replace(kv_len=sizes.q_len), **more)


BARE = ScoringSpec(name="bare", make=attnbench.get("dot").make, equal_sizes=True)
SKIPS: list[tuple[Any, str, str]] = [
    ("causal_attention", "weights_sum_to_one", "^it does not apply to a layer$"),
    (
        KernelSpec(
            name="unmasked",
            scoring="scaled_dot",
            attend=lambda module, query, key, value, attn_mask=None, is_causal=False: value,
            supports=lambda case: None if case.mask == "none" else "it takes no mask",
        ),
        "masked_weights_are_zero",
        "^it takes none of the property's cases: it takes no mask$",
    ),
    (HEADS.spec, "common_shift_of_scores_changes_nothing", "dot products"),
    (HEADS.spec, "grouped_heads_equal_expanded_heads", "^does not accept enable_gqa$"),
    (ATTENTION.spec, "gradients_reach_every_parameter", "^it has no parameters$"),
    (BARE, "agrees_with_scalar_reference", "^declares no reference in Python floats$"),
    (BARE, "translation_invariant", "^law not declared$"),
    (
        replace(BARE, exempt={"translation_invariant": "law not declared"}),
        "translation_invariant",
        "^exempt: law not declared$",
    ),
    (
        mutant(Attention, accepts=(), laws=()),
        "weights_sum_to_one",
        "^neither hands back weights nor declares pools_values$",
    ),
    (mutant(Attention, laws=()), "output_lies_within_values", "^does not declare pools_values$"),
    (tied(), "masking_equals_deleting", "kv_len cannot be chosen alone"),
    *(
        (tied(conventions={"masks": ()}), name, "no mask that it takes leaves a query without keys")
        for name in ("empty_rows_give_zeros", "empty_rows_have_finite_gradients")
    ),
    (
        adapters.sdpa(scaled_dot_product_attention, dtypes=("float32",)),
        "gradients_are_as_accurate_as_the_output",
        "half type",
    ),
    (
        cropped(None),
        "cropped_slots_are_forgotten",
        "^not tried: its CacheSpec has no crop",
    ),
    (
        cropped(refuse),
        "cropped_slots_are_forgotten",
        "^refused: crop raises NotImplementedError: a cache of this kind",
    ),
]


@pytest.mark.parametrize(("spec", "invariant", "told"), SKIPS)
def test_what_does_not_apply_is_skipped_with_its_reason(
    spec: Any, invariant: str, told: str
) -> None:
    outcome = run(spec, invariant)
    assert outcome.status == "skipped"
    assert re.search(told, outcome.reason), outcome.reason
    assert outcome.undeclared is (outcome.reason == "law not declared")
