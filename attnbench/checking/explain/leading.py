"""The failure of a subject that says most, by how specific its property is."""

from __future__ import annotations

from collections.abc import Sequence

from attnbench.checking.outcomes import KEEPS_CONTRACT, Outcome

_RANKS = (
    (
        "item_alone_equals_item_in_batch",
        "leading_sizes_fold",
        "masks_broadcast",
        "output_is_linear_in_values",
        "queries_permute_freely",
        "query_alone_equals_query_among_others",
        "valid_lengths_count_the_keys",
        "weights_sum_to_one",
    ),
    (
        "causal_and_padding_combine",
        "every_attendable_key_matters",
        "hidden_keys_stay_hidden_at_extreme_scores",
        "mask_forms_agree",
        "output_lies_within_values",
    ),
    (
        "bias_is_added_to_scores",
        "bias_of_all_keys_hides_none",
        "common_shift_of_scores_changes_nothing",
        "empty_rows_give_zeros",
        "empty_rows_have_finite_gradients",
        "grouped_heads_equal_expanded_heads",
        "keys_permute_freely",
        "rounding_has_no_bias",
    ),
    (
        "leading_padding_equals_deleting",
        "scale_multiplies_scores",
        "trailing_padding_equals_deleting",
    ),
    (
        "decode_equals_prefill",
        "future_does_not_leak",
        "masked_slots_are_inert",
        "masked_weights_are_zero",
        "masking_equals_deleting",
    ),
    ("agrees_with_float64", "autocast_agrees"),
    (
        "agrees_with_scalar_reference",
        "bilinear",
        "bounded_by_one",
        "layer_agrees_with_reference",
        "monotone_in_distance",
        "query_independent",
        "rotation_invariant",
        "translation_invariant",
        "unit_variance",
    ),
    (
        "bias_gets_its_gradient",
        "dropout_acts_on_weights",
        "dropout_differs_between_blocks",
        "dropout_is_independent",
        "dropout_keeps_the_mean",
        "gradients_are_as_accurate_as_the_output",
        "gradients_are_finite_at_extremes",
        "gradients_are_right",
        "gradients_are_right_with_dropout",
        "gradients_reach_every_parameter",
        "one_tensor_equals_three_copies",
        "second_derivatives_are_right_or_refused",
        "vmap_equals_batch",
        "weights_are_those_before_dropout",
    ),
    ("hidden_slots_may_hold_nan", "hidden_slots_may_hold_nan_in_training"),
)
"""Properties that many mistakes violate, the most specific first; others are more specific."""

_RANK_OF = {name: rank for rank, names in enumerate(_RANKS, 1) for name in names}


def lead_of(outcomes: Sequence[Outcome]) -> Outcome:
    """The failure to describe: a broken contract, or else the most specific property.

    If most checks raised, it is one that raised, since the others say little. That an answer is NaN
    somewhere breaks the contract as well, and most other properties say more.
    """
    failures = [o for o in outcomes if o.failure is not None] or list(outcomes[:1])
    raising = [o for o in failures if o.failure is not None and o.failure.raised]
    comparing = [o for o in failures if o not in raising]
    leads = raising if len(raising) > len(comparing) else comparing
    return min(leads, key=_rank)


def _rank(outcome: Outcome) -> int:
    if outcome.invariant != KEEPS_CONTRACT:
        return _RANK_OF.get(outcome.invariant, 0)
    is_nan = outcome.failure is not None and outcome.failure.fault == "nan"
    return len(_RANKS) if is_nan else -1
