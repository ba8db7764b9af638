"""The likely cause: what points at one, what stays silent, and the order that is shipped."""

from __future__ import annotations

import json
from collections import Counter
from importlib import resources
from typing import Any

import pytest
import torch
from attnbench_zoo.mutants import MUTANTS
from torch import Tensor

import attnbench
from attnbench.cases.case import Case
from attnbench.checking.cause.likely_cause import Clue, clue_of, with_cause
from attnbench.checking.check_report import CheckReport
from attnbench.checking.known_causes import cause_in_words, known_causes
from attnbench.checking.outcomes import KEEPS_CONTRACT, Failure, Outcome
from attnbench.checking.plan import select_invariants
from attnbench.checking.report_text import finding_text
from tests.meta.mutants.causes import CAUSES, halves, verdict


def failed(*names: str, **fields: Any) -> list[Outcome]:
    found = Failure(**fields)
    return [Outcome("mine", name, "failed", "output[0] = 1", failure=found) for name in names]


def test_sinks_that_count_too_often_are_told_with_their_number_if_it_is_known() -> None:
    one, other = "sinks_counted_times_2", "sinks_counted_by_block_64"
    found = [cause_in_words("sinks_counted", names) for names in ([one], [other], [one, other])]
    assert found[0].startswith("a sink counts 2 times in a row")
    assert "once for each block of 64 keys" in found[1]
    assert found[2].startswith("a sink counts more than once in a row")


def test_what_explains_the_output_comes_before_any_invariant() -> None:
    found = failed("copies_agree", mistakes=("mask_inverted", "mask_ignored"))
    assert clue_of(found) == Clue("makes", "mask_inverted", "mask_inverted")


@pytest.mark.parametrize(
    ("mistakes", "words"),
    [
        (("mask_laid_tiled_over_heads",), "as by repeat in place of repeat_interleave"),
        (("mask_laid_of_first_head", "mask_laid_transposed"), "masks are laid over the wrong"),
        (("keys_lost_beyond_127",), "keys beyond the first 127 are never read"),
        (("keys_lost_beyond_127", "keys_lost_beyond_128"), "some keys are never read"),
        (("scale_missing", "values_reversed"), "the scale of 1/√E is missing"),
    ],
)
def test_a_cause_is_in_the_words_of_the_only_form_that_the_calls_show(
    mistakes: tuple[str, ...], words: str
) -> None:
    (told,) = with_cause(failed("agrees_with_scalar_reference", mistakes=mistakes))
    assert told.diagnosis is not None
    assert words in told.diagnosis


def test_every_form_is_that_of_a_mistake() -> None:
    data = known_causes()
    assert data["forms"].keys() <= data["mistakes"].keys()


def test_what_fails_in_float32_is_not_computed_in_float32_alone() -> None:
    double, single = (Case((2,), 3, 4, dtype=dtype).id for dtype in ("float64", "float32"))
    found = failed(
        "agrees_with_scalar_reference", case=double, mistakes=("computed_in_float32",)
    ) + failed("pools_values", case=double)
    narrow = Clue("makes", "computed_in_float32", "float32_inside")
    assert clue_of(found) == narrow
    found += failed("pages_are_invisible", case=single)
    assert clue_of(found) == Clue("fails", "pages_are_invisible", "pages")


def test_options_are_not_wrong_together_where_one_is_wrong_alone() -> None:
    together = failed("softcap_bounds_scores", named="options_combined")
    assert clue_of(together) == Clue("says", "options_combined", "options_combined")
    found = clue_of(together + failed("alibi_slopes_lower_scores_by_distance"))
    assert found == Clue("fails", "alibi_slopes_lower_scores_by_distance", "slopes_argument")


def test_what_a_reference_tells_without_any_mask_is_not_about_lengths() -> None:
    found = failed("valid_lengths_count_the_keys")
    for mask, cause in (("none", "formula"), ("padding", "lengths")):
        case = Case((2,), 3, 4, mask=mask).id
        scalar = failed("agrees_with_scalar_reference", case=case, smallest=True)
        clue = clue_of(found + scalar)
        assert clue is not None
        assert clue.cause == cause


@pytest.mark.parametrize("mask", ["none", "causal"])
def test_no_mistake_of_masks_is_told_where_a_call_without_one_is_wrong(mask: str) -> None:
    case = Case((), 1, 4, 1, 1, 1, mask=mask)
    found = failed("decode_equals_prefill", mistakes=("causality_of_the_lengths_difference",))
    found += failed("constant_values_come_back", case=case.id, smallest=True)
    clue = clue_of(found)
    assert (clue is not None and clue.cause == "causality") == (mask == "causal")


def test_how_weights_deviate_says_nothing_where_a_function_contradicts_itself() -> None:
    found = failed("agrees_with_scalar_reference", mistakes=("scores_by_key",))
    assert clue_of(found) == Clue("makes", "scores_by_key", "order_of_keys")
    options = failed("softcap_bounds_scores")
    assert clue_of(found + options) == Clue("makes", "scores_by_key", "order_of_keys")
    assert clue_of(found + failed("layouts_agree")) == Clue("fails", "layouts_agree", "layout")


def test_what_fails_in_wide_dtypes_too_is_not_lost_by_half_types() -> None:
    wide, half = (Case((2,), 3, 4, dtype=dtype).id for dtype in ("float32", "float16"))
    found = failed("finite_at_extremes", case=half, smallest=True)
    assert clue_of(found) == Clue("fails", "finite_at_extremes", "half_precision")
    other = failed("finite_at_extremes", case=wide, smallest=True)
    assert clue_of(other) == Clue("fails", "finite_at_extremes", "not_finite")
    found += failed("weights_are_not_negative", case=wide, smallest=True)
    assert clue_of(found) is None
    found = failed("finite_at_extremes", case=half, smallest=True)
    found += failed("masked_slots_are_inert", case=wide, smallest=True)
    assert clue_of(found) == Clue("fails", "masked_slots_are_inert", "hidden_slots_reach")


def test_gradients_that_are_wrong_in_every_dtype_are_no_matter_of_half_types() -> None:
    found = failed("gradients_are_as_accurate_as_the_output")
    assert clue_of(found) == Clue(
        "fails", "gradients_are_as_accurate_as_the_output", "half_gradient"
    )
    found += failed("gradients_are_right")
    assert clue_of(found) == Clue("fails", "gradients_are_right", "gradient")


def test_a_key_that_changes_nothing_at_all_in_half_types_is_not_read() -> None:
    half = {"case": Case((1,), 1, 65, dtype="float16").id, "smallest": True}
    name = "every_attendable_key_matters"
    assert clue_of(failed(name, got=0.0, **half)) == Clue("fails", name, "key_lost")
    assert clue_of(failed(name, got=1e-5, **half)) == Clue("fails", name, "half_precision")


def test_squares_that_overflow_explain_half_types_alone() -> None:
    wide, half = (Case((2,), 3, 4, dtype=dtype).id for dtype in ("float32", "float16"))
    found = failed("gradients_are_finite_at_extremes", case=half, smallest=True)
    told = failed("half_types_agree", case=half, smallest=True, mistakes=("squares_overflow",))
    assert clue_of(found + told) == Clue("makes", "squares_overflow", "half_precision")
    told += failed("masked_slots_are_inert", case=wide, smallest=True)
    assert clue_of(told) == Clue("fails", "masked_slots_are_inert", "hidden_slots_reach")


def test_failures_that_point_at_one_cause_are_not_many() -> None:
    found = failed("bias_is_added_to_scores", "bias_of_all_keys_hides_none", "large_bias_hides")
    found += failed("bias_gets_its_gradient", "key_given_again_equals_bias_of_log_2")
    (clue,) = {clue_of(found)}
    assert clue is not None
    assert clue.cause == "floating_mask"
    assert clue_of(found + failed("queries_permute_freely", "masking_equals_deleting")) is None


def test_what_follows_from_weights_that_do_not_sum_to_one_is_no_other_cause() -> None:
    found = failed("constant_values_come_back", "output_lies_within_values", "weights_sum_to_one")
    found += failed("single_key_gets_weight_one")
    cause = "rows_do_not_sum_to_one"
    assert clue_of(found) == Clue("fails", "weights_sum_to_one", cause)


def test_what_float32_loses_is_a_cause_unless_a_more_specific_property_fails() -> None:
    lost = failed("agrees_with_float64", named="precision", case=Case((2,), 3, 4).id)
    laws = failed("rotation_invariant", "translation_invariant", "monotone_in_distance")
    assert clue_of(lost + laws) == Clue("fails", "agrees_with_float64", "precision")
    found = clue_of(lost + failed("layouts_agree"))
    assert found == Clue("fails", "layouts_agree", "layout")


def test_nan_in_both_of_two_calls_without_a_mask_is_the_cause() -> None:
    plain, masked = (Case((2,), 3, 4, mask=mask).id for mask in ("none", "boolean"))
    found = failed("agrees_with_float64", "gradients_are_right", "one_tensor_equals_three_copies")
    found += failed("masked_slots_get_no_gradient")
    hidden = found + failed("gradient_layouts_agree", named="nan_result", case=masked)
    assert clue_of(hidden) != Clue("says", "nan_result", "nan_result")
    open_ = found + failed("gradient_layouts_agree", named="nan_result", case=plain)
    assert clue_of(open_) == Clue("says", "nan_result", "nan_result")


def test_what_fails_in_wide_dtypes_comes_before_what_half_precision_loses() -> None:
    half, single = (Case((2,), 3, 4, dtype=dtype).id for dtype in ("float16", "float32"))
    lost = failed("finite_at_extremes", "agrees_with_float64", case=half, smallest=True)
    assert clue_of(lost) == Clue("fails", "finite_at_extremes", "half_precision")
    found = clue_of(lost + failed("leading_padding_equals_deleting", case=single, smallest=True))
    assert found == Clue("fails", "leading_padding_equals_deleting", "padding_counts")


def test_what_a_call_leaves_behind_is_a_cause_in_half_types_too() -> None:
    half, single = (Case((2,), 3, 4, dtype=dtype).id for dtype in ("float16", "float32"))
    kept = failed("calls_leave_no_trace", case=half, smallest=True)
    found = clue_of(kept + failed("leading_padding_equals_deleting", case=single, smallest=True))
    assert found == Clue("fails", "calls_leave_no_trace", "state_kept")


def test_what_a_call_leaves_behind_comes_before_what_it_makes_wrong() -> None:
    found = failed("leading_padding_equals_deleting", named="positions")
    found += failed("decode_equals_prefill", "calls_leave_no_trace")
    assert clue_of(found) == Clue("fails", "calls_leave_no_trace", "state_kept")
    raised = failed("leading_padding_equals_deleting")
    raised += failed("calls_leave_no_trace", raised="IndexError")
    assert clue_of(raised) == Clue("fails", "leading_padding_equals_deleting", "padding_counts")


def test_nan_in_a_gradient_is_no_cause_where_outputs_are_wrong() -> None:
    plain = Case((2,), 1, 1).id
    nan = failed("gradients_are_right", named="nan_result", case=plain, quantity="a gradient")
    assert clue_of(nan) == Clue("says", "nan_result", "nan_result")
    found = clue_of(nan + failed("padded_tokens_are_inert"))
    assert found == Clue("fails", "padded_tokens_are_inert", "layer_padding")


def test_nan_in_half_types_is_no_cause_of_what_fails_in_wide_ones() -> None:
    half, single = (Case((2,), 3, 4, dtype=dtype).id for dtype in ("bfloat16", "float32"))
    lost = failed(KEEPS_CONTRACT, named="half_precision", case=half, smallest=True)
    assert clue_of(lost) == Clue("says", "half_precision", "half_precision")
    names = "gradients_are_right", "long_gradients_are_right", "masked_slots_get_no_gradient"
    lost += failed(*names, case=single, smallest=True)
    found = clue_of(lost + failed("gradient_layouts_agree", named="nan_result", case=single))
    assert found == Clue("says", "nan_result", "nan_result")


def test_a_number_too_near_is_told_before_the_rows_without_keys_that_it_fills() -> None:
    extreme = "hidden_keys_stay_hidden_at_extreme_scores"
    empty = failed("empty_rows_give_zeros", mistakes=("empty_rows_mean",))
    assert clue_of(empty) == Clue("makes", "empty_rows_mean", "empty_rows")
    found = clue_of(empty + failed(extreme, "future_does_not_leak", "masked_slots_are_inert"))
    assert found == Clue("fails", extreme, "hidden_at_extremes")


def test_documents_that_reach_each_other_are_told_of_before_items_that_do() -> None:
    found = failed("item_alone_equals_item_in_batch", mistakes=("items_read_together",))
    assert clue_of(found) == Clue("makes", "items_read_together", "items_mixed")
    for name, cause in (
        ("packed_documents_are_independent", "packed"),
        ("pages_are_invisible", "pages"),
    ):
        assert clue_of(found + failed(name)) == Clue("fails", name, cause)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("cap_without_its_slope", "gradient"),
        pytest.param("grouped_heads_get_one_gradient", "gradient", marks=pytest.mark.long),
        pytest.param("sinks_detached", "gradient", marks=pytest.mark.long),
        ("sinks_lost_in_training", "sinks_argument"),
        ("capped_before_the_scale", "softcap_argument"),
    ],
)
def test_an_option_whose_gradient_alone_is_wrong_is_told_so(name: str, cause: str) -> None:
    (mutant,) = (mutant for mutant in MUTANTS if mutant.name == name)
    report = attnbench.check(mutant.spec, profile="quick", invariants=mutant.killers)
    assert [o.failure.cause for o in report.outcomes if o.failure is not None] == [cause]


def test_an_option_that_is_wrong_alone_comes_before_the_pages_that_it_is_used_with() -> None:
    found = failed("pages_are_invisible", "window_leaves_the_keys_around")
    window = Clue("fails", "window_leaves_the_keys_around", "window_argument")
    assert clue_of(found) == window
    pages = clue_of(found + failed("agrees_with_scalar_reference"))
    assert pages == Clue("fails", "pages_are_invisible", "pages")


@pytest.mark.parametrize("cause", ["inputs_changed", "dropout_in_evaluation", "not_deterministic"])
def test_what_spoils_a_second_call_comes_before_what_explains_the_output(cause: str) -> None:
    found = failed("copies_agree", mistakes=("mask_inverted",), named=cause)
    assert clue_of(found) == Clue("says", cause, cause)


def test_the_most_specific_property_comes_first() -> None:
    names = ["agrees_with_scalar_reference", "unit_variance", "layouts_agree"]
    assert clue_of(failed(*names)) == Clue("fails", "layouts_agree", "layout")
    cut = ["empty_calls_are_harmless", "calls_may_be_cut_anywhere"]
    assert clue_of(failed(*cut)) == Clue("fails", "calls_may_be_cut_anywhere", "layer_cut")


def test_a_cut_is_told_in_the_form_that_its_failure_names() -> None:
    form = known_causes()["forms"]["cached_slots_changed"]
    cut = failed("calls_may_be_cut_anywhere", named="cached_slots_changed")
    others = failed("cropped_slots_are_forgotten", "autocast_agrees", "empty_calls_are_harmless")
    for found in (cut, cut + others):
        told = with_cause(found)[0]
        assert told.failure is not None
        assert (told.failure.cause, told.diagnosis) == ("layer_cut", form)


def test_a_program_that_raised_says_nothing_of_its_property_whatever_form_it_names() -> None:
    cut = "calls_may_be_cut_anywhere"
    assert clue_of(failed(cut, named="cached_slots_changed", raised="IndexError")) is None


def test_a_length_after_a_selection_follows_from_rows_that_are_not_selected() -> None:
    length, select = "cache_length_counts_slots", "selected_rows_go_on_as_their_sequences"
    selected = Clue("fails", select, "layer_select")
    for program, leads in (
        ("begin 1 row, select rows [0, 0], append 1", selected),
        ("begin 1 row, append 1", Clue("fails", length, "layer_length")),
    ):
        found = failed(length, program=program)
        assert clue_of(found) == Clue("fails", length, "layer_length")
        assert clue_of(found + failed(select)) == leads


def test_several_slots_a_token_come_before_a_wrong_length() -> None:
    length = failed("cache_length_counts_slots")
    assert clue_of(length) == Clue("fails", "cache_length_counts_slots", "layer_length")
    cut = failed("calls_may_be_cut_anywhere", named="layer_slots")
    assert clue_of(length + cut) == Clue("says", "layer_slots", "layer_slots")


def test_padding_that_reaches_others_at_either_side_is_no_fault_of_the_left() -> None:
    left = failed("left_padding_is_inert", named="layer_left_padding")
    assert clue_of(left) == Clue("says", "layer_left_padding", "layer_left_padding")
    right = failed("right_padding_is_inert")
    found = Clue("fails", "right_padding_is_inert", "layer_padding_cache")
    assert clue_of(left + right) == found
    assert clue_of(right) == found


def test_a_layer_without_a_cache_is_not_told_of_one() -> None:
    clue = clue_of(failed("layer_calls_leave_no_trace"))
    assert clue is not None
    assert "cache" not in cause_in_words(clue.cause)


def test_a_crop_is_no_cause_where_calls_without_one_fail() -> None:
    crop = failed("cropped_slots_are_forgotten", "cache_length_counts_slots")
    assert clue_of(crop) == Clue("fails", "cropped_slots_are_forgotten", "layer_crop")
    cut = failed("cropped_slots_are_forgotten", "calls_may_be_cut_anywhere")
    assert clue_of(cut) == Clue("fails", "calls_may_be_cut_anywhere", "layer_cut")


def test_a_wrong_output_is_no_wrong_gradient() -> None:
    names = ["gradients_are_right", "masking_equals_deleting"]
    assert clue_of(failed(*names)) is None
    assert clue_of(failed(names[0])) == Clue("fails", "gradients_are_right", "gradient")


def test_what_many_mistakes_violate_points_at_something_only_with_few_others() -> None:
    names = ["keys_permute_freely", "equal_keys_get_equal_weight", "pools_values"]
    assert clue_of(failed(*names)) == Clue("fails", "keys_permute_freely", "order_of_keys")
    assert clue_of(failed(*names, "single_key_gets_weight_one")) is None


def test_nan_in_padding_explains_no_other_failure() -> None:
    padded = failed("hidden_slots_may_hold_nan", "hidden_slots_may_hold_nan_in_training")
    assert clue_of(padded) == Clue("fails", "hidden_slots_may_hold_nan", "poison")
    others = failed("dropout_acts_on_weights", "dropout_keeps_the_mean")
    assert clue_of([*padded, *others]) == Clue("fails", "dropout_acts_on_weights", "dropout")


def test_what_fails_with_half_types_only_points_at_them() -> None:
    half, single = (Case(dtype=name).id for name in ("float16", "float32"))
    name = "gradients_are_finite_at_extremes"
    assert clue_of(failed(name, case=half, smallest=True)) == Clue("fails", name, "half_precision")
    assert clue_of(failed(name, case=single, smallest=True)) == Clue("fails", name, "gradient")
    wider = failed("masks_broadcast", "mask_forms_agree", "layouts_agree", case=single)
    found = [*failed("finite_at_extremes", case=half, smallest=True), *wider]
    assert clue_of([*found, *failed("copies_agree", case=single)]) == Clue(
        "fails", "layouts_agree", "layout"
    )


def test_an_invariant_that_names_its_cause_says_nothing_of_its_property() -> None:
    found = failed("layouts_agree", "copies_agree", named="shape")
    assert clue_of(found) == Clue("says", "shape", "shape")


def test_a_cause_that_few_failures_name_is_not_that_of_all() -> None:
    others = failed("layouts_agree", "copies_agree", "leading_sizes_fold")
    found = [*others, *failed("masks_broadcast", named="shape")]
    assert clue_of(found) == Clue("fails", "layouts_agree", "layout")


def test_a_layers_inverted_mask_counts_whatever_else_fails() -> None:
    others = failed("padded_outputs_are_finite", "copies_agree", "autocast_agrees", "layouts_agree")
    found = [*others, *failed("padded_tokens_are_inert", named="mask_inverted")]
    assert clue_of(found) == Clue("says", "mask_inverted", "mask_inverted")


def test_what_the_contract_names_counts_alone() -> None:
    others = failed(*[invariant.name for invariant in select_invariants(None)][:20])
    found = [*failed(KEEPS_CONTRACT, named="not_deterministic"), *others]
    assert clue_of(found) == Clue("says", "not_deterministic", "not_deterministic")


@pytest.mark.parametrize("names", [("masks_broadcast",), (KEEPS_CONTRACT, "masks_broadcast")])
def test_a_call_that_raises_tells_nothing_of_the_property_that_made_it(
    names: tuple[str, ...],
) -> None:
    assert clue_of(failed(*names, raised="ValueError")) is None


def test_where_the_contracts_own_call_fails_no_property_of_another_is_told() -> None:
    assert clue_of(failed(KEEPS_CONTRACT, "inputs_are_unchanged", "layouts_agree")) is None


def test_what_a_failure_names_counts_at_its_place_where_the_table_has_no_cause() -> None:
    others = ("padded_item_equals_item_alone", "caches_are_independent", "layouts_agree")
    padded = failed(*others)
    found = [*padded, *failed("items_are_independent", named="items_mixed")]
    assert clue_of(found) == Clue("fails", "items_are_independent", "items_mixed")
    assert clue_of([*padded, *failed("items_are_independent")]) is None


def test_scores_of_another_formula_are_told_whatever_follows_from_them() -> None:
    many = failed("queries_permute_freely", "masks_broadcast", "leading_sizes_fold")
    formula = failed("agrees_with_scalar_reference", named="scores_formula")
    assert clue_of([*many, *formula]) == Clue("says", "scores_formula", "scores_formula")
    assert clue_of([*many, *failed("agrees_with_scalar_reference")]) is None
    output = Clue("fails", "agrees_with_scalar_reference", "formula")  # all that one shows
    assert clue_of(failed("agrees_with_scalar_reference")) == output
    state = Clue("fails", "calls_leave_no_trace", "state_kept")
    assert clue_of([*many, *formula, *failed("calls_leave_no_trace")]) == state


def test_nothing_is_said_of_what_passed() -> None:
    assert clue_of([Outcome("mine", "layouts_agree", "passed")]) is None


def test_the_failure_that_shows_the_cause_best_tells_it() -> None:
    found = failed("agrees_with_scalar_reference", "unit_variance", "layouts_agree")
    told = with_cause([Outcome("mine", "copies_agree", "passed"), *found])
    text = "the answer depends on how the tensors lie in memory"
    assert [outcome.diagnosis for outcome in told] == [None, None, None, text]
    lines = finding_text(told[1:]).splitlines()
    assert lines[0] == f"mine: {text} (likely cause)"
    assert lines[1] == "FAILED mine: layouts_agree"
    assert lines[-1] == "  also failed: agrees_with_scalar_reference, unit_variance"
    assert text in repr(CheckReport(told))


def test_a_mistake_is_shown_by_a_property_of_its_topic() -> None:
    names = ("constant_values_come_back", "masked_slots_are_inert")
    told = with_cause(failed(*names, mistakes=("mask_inverted",)))
    assert [outcome.diagnosis is not None for outcome in told] == [False, True]


def test_half_precision_is_shown_by_what_is_finite_in_wide_types() -> None:
    half = Case((2,), 3, 4, dtype="float16").id
    names = (KEEPS_CONTRACT, "finite_at_extremes")
    told = with_cause(failed(*names, named="half_precision", case=half, smallest=True))
    assert [outcome.diagnosis is not None for outcome in told] == [False, True]


def _laid(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention on (B, L, H, E)."""
    tensors = (tensor.transpose(1, 2) for tensor in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(*tensors).transpose(1, 2)


@pytest.mark.parametrize(
    "invariants",
    [
        ["pools_values"],
        pytest.param(["constant_values_come_back"], marks=pytest.mark.long),
        pytest.param(None, marks=pytest.mark.long),
    ],
)
def test_a_function_of_another_layout_is_told_its_style(invariants: list[str] | None) -> None:
    report = attnbench.check(_laid, style="sdpa", profile="quick", invariants=invariants)
    told = "the function takes (B, L, H, E), the layout of the style flash, and not (B, H, L, E)"
    assert [o.diagnosis for o in report.outcomes if o.diagnosis] == [told]
    right = torch.nn.functional.scaled_dot_product_attention
    mirrored = attnbench.check(
        lambda q, k, v: right(q, k, v), style="flash", profile="quick", invariants=["pools_values"]
    )
    assert "the layout of the style sdpa" in str(mirrored)


def test_without_a_cause_the_most_specific_failure_is_described() -> None:
    found = failed("agrees_with_scalar_reference", "copies_agree", "layer_calls_leave_no_trace")
    text = finding_text([Outcome("mine", "pools_values", "timeout", "too long"), *found])
    assert text.startswith("FAILED mine: layer_calls_leave_no_trace\n")
    assert "also failed: agrees_with_scalar_reference, copies_agree" in text
    assert "failed: layer_calls_leave_no_trace on mine" in repr(CheckReport(tuple(found)))
    contract = [*found, *failed(KEEPS_CONTRACT)]
    assert finding_text(contract).startswith(f"FAILED mine: {KEEPS_CONTRACT}\n")


def test_what_is_shipped_names_what_there_is() -> None:
    data = known_causes()
    known = {invariant.name for invariant in select_invariants(None)}
    table = [row for part in ("specific", "general", "late") for row in data[part]]
    shown = [name for names in data["shown_by"].values() for name in names]
    assert {*(name for name, _ in table), *shown} <= known
    assert len({name for name, _ in table}) == len(table)
    pointed = {*data["mistakes"].values(), *(cause for _, cause in table), *data["shown_by"]}
    assert pointed - {None} <= set(data["causes"])


def test_every_mutant_has_its_causes_named() -> None:
    assert set(CAUSES) == set(halves()) == {mutant.name for mutant in MUTANTS}
    assert {cause for row in CAUSES.values() for cause in row} <= set(known_causes()["causes"])
    assert verdict("polarity_inverted", "mask_inverted") == "right"
    assert verdict("polarity_inverted", "gradient") == "wrong"


def test_of_many_failures_what_is_true_whatever_it_comes_from_is_told() -> None:
    sums = ("constant_values_come_back", "decode_equals_prefill", "keys_permute_freely")
    found = failed("valid_lengths_count_the_keys", *sums, "masking_equals_deleting")
    assert clue_of(found) is None
    for mask in ("none", "causal"):
        rows = failed("weights_sum_to_one", case=Case((2,), 3, 4, mask=mask).id)
        clue = Clue("fails", "weights_sum_to_one", "rows_do_not_sum_to_one")
        assert clue_of(found + rows) == clue
    (order,) = failed("keys_permute_freely", case=Case((2,), 3, 4).id)
    others = [outcome for outcome in found if outcome.invariant != order.invariant]
    assert clue_of([*others, order]) == Clue("fails", "keys_permute_freely", "order_of_keys")
    wrong = ("scale_multiplies_scores", "bias_gets_its_gradient", "long_gradients_are_right")
    found = failed("empty_rows_have_finite_gradients", "gradients_are_finite_at_extremes")
    found += failed(*wrong, quantity="gradient of query")
    assert clue_of(found) is None
    found += failed("gradients_are_right", case=Case((2,), 3, 4).id)
    assert clue_of(found) == Clue("fails", "gradients_are_right", "gradient")


def test_no_name_in_the_table_of_causes_stands_twice() -> None:
    """Or the second meaning is told of the first, as one of layers of a function."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), Counter(n for n, _ in pairs).most_common(1)
        return dict(pairs)

    file = resources.files("attnbench.checking").joinpath("causes.json")
    json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=once)
