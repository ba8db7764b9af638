"""Why an invariant is skipped where it does not apply."""

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
from tests.invariant_runs import mutant, run


def refuse(cache: object, length: int) -> None:
    raise NotImplementedError("a cache of this kind cannot be cropped")


def cropped(crop: Any) -> LayerSpec:
    assert GROWING.cache is not None
    return replace(GROWING, cache=CacheSpec(new=GROWING.cache.new, crop=crop))


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
    (HEADS, "common_shift_of_scores_changes_nothing", "dot products"),
    (ATTENTION, "gradients_reach_every_parameter", "^it has no parameters$"),
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
    (tied(), "masking_equals_deleting", "kv_len cannot be chosen alone"),
    (
        tied(conventions={"masks": ()}),
        "empty_rows_give_zeros",
        "no mask that it takes leaves a query without keys",
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
