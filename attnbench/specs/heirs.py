"""Names of invariants that others have absorbed: each stands for its heir wherever it is given."""

from __future__ import annotations

from collections.abc import Mapping

HEIRS: Mapping[str, str] = {
    "cached_calls_keep_the_contract": "calls_may_be_cut_anywhere",
    "checkpointing_changes_nothing": "dropout_is_drawn_once",
    "constant_values_come_back": "output_lies_within_values",
    "equal_keys_get_equal_weight": "weights_sum_to_one",
    "exported_equals_eager": "compiled_equals_eager",
    "fake_tensors_tell_the_shape": "vmap_equals_batch",
    "heads_are_independent": "item_alone_equals_item_in_batch",
    "kernel_gradients_equal_plain_ones": "gradients_are_right",
    "large_bias_hides": "masking_equals_deleting",
    "later_tokens_take_no_gradient": "later_tokens_are_invisible",
    "long_gradients_are_right": "gradients_are_right",
    "masked_runs_are_as_accurate": "agrees_with_float64",
    "masked_slots_get_no_gradient": "masked_slots_are_inert",
    "moved_tokens_keep_their_outputs": "outputs_see_no_more_than_the_window",
    "packed_documents_are_independent": "packed_equals_separate",
    "padded_outputs_are_finite": "padded_tokens_are_inert",
    "padded_tokens_take_no_gradient": "padded_tokens_are_inert",
    "parts_stand_in_for_no_other": "outputs_depend_on_their_token",
    "position_in_batch_invariant": "batch_invariant",
    "single_key_gets_weight_one": "weights_sum_to_one",
    "size_one_dimensions_are_kept": "output_has_shape_and_dtype",
    "weights_are_not_negative": "weights_sum_to_one",
    "weights_follow_scores": "weights_sum_to_one",
    "windows_end_at_their_edges": "masking_equals_deleting",
}


def heir(name: str) -> str:
    """The invariant that a name stands for today."""
    return HEIRS.get(name, name)
