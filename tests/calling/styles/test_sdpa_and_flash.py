from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench import adapters
from attnbench.adapters import flash
from attnbench.checking.parametrization import checks_of
from attnbench.errors import RefusalError
from attnbench.subject.lookup import resolve
from tests.attention_functions import FEW, blhd, flashlike, statuses


@pytest.mark.slow
def test_torchs_fused_attention_is_accused_of_nothing_but_no_positive_scale_beside_causality() -> (
    None
):
    report = attnbench.check(scaled_dot_product_attention, style="sdpa", profile="quick")
    failed = [outcome for outcome in report.outcomes if outcome.status not in ("passed", "skipped")]
    assert [outcome.invariant for outcome in failed] == ["scale_multiplies_scores"]
    assert "with scale=-0.5, output" in failed[0].reason
    assert "mask causal" in str(report)
    assert report.about == (
        "scaled_dot_product_attention: called as sdpa; "
        "conventions: causal=top_left, hidden_slots=finite",
    )


def with_options(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    softmax_scale: float | None = None,
    softcap: float = 0.0,
    window_size: tuple[int, int] = (-1, -1),
    alibi_slopes: Tensor | None = None,
    s_aux: Tensor | None = None,
) -> Tensor:
    """What callers ask of attention, under names of several libraries."""
    scale = query.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = (query.float() * scale) @ key.float().mT
    if softcap:
        scores = softcap * (scores / softcap).tanh()
    q_len, kv_len = scores.shape[-2:]
    steps = torch.arange(kv_len) - torch.arange(q_len).unsqueeze(-1) - (kv_len - q_len)
    if alibi_slopes is not None:
        scores = scores - alibi_slopes[:, None, None] * steps.abs()
    before, after = window_size
    allowed = torch.ones(q_len, kv_len, dtype=torch.bool)
    allowed = allowed.tril() if is_causal else allowed
    allowed = allowed & (steps >= -before) if before >= 0 else allowed
    allowed = allowed & (steps <= after) if after >= 0 else allowed
    if attn_mask is not None:
        allowed = allowed & (
            attn_mask > float("-inf") if attn_mask.is_floating_point() else attn_mask
        )
        scores = scores + attn_mask if attn_mask.is_floating_point() else scores
    scores = scores.masked_fill(~allowed, -1e30)
    if s_aux is not None:
        column = s_aux.float()[:, None, None].expand(*scores.shape[:-1], 1)
        scores = torch.cat([scores, column], -1)
    weights = scores.softmax(-1)[..., :kv_len].masked_fill(~allowed, 0.0)
    return (weights @ value.float()).to(query.dtype)


OPTIONS = (
    "window_leaves_the_keys_around",
    "softcap_bounds_scores",
    "sinks_take_weight_alone",
    "alibi_slopes_lower_scores_by_distance",
    "scale_multiplies_scores",
)


def test_options_are_found_by_their_names_and_held_to_the_textbook() -> None:
    report = attnbench.check(
        adapters.sdpa(with_options, dtypes=("float32", "bfloat16")),
        profile="quick",
        invariants=OPTIONS,
    )
    assert statuses(report) == dict.fromkeys(OPTIONS, "passed"), str(report)


def hiding(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """NaN in a hidden value is multiplied by 0."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    return scores.softmax(-1).nan_to_num() @ value


def emptying(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """Hidden keys and values are zeros."""
    if attn_mask is not None:
        hidden = ~attn_mask.any(-2).unsqueeze(-1)
        key, value = key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)
    return hiding(query, key, value, attn_mask)


def test_a_call_tells_whether_hidden_slots_may_hold_nan() -> None:
    leaking, safe = (adapters.sdpa(function) for function in (hiding, emptying))
    assert leaking.conventions["hidden_slots"] == "finite"
    assert "hidden_slots" not in safe.conventions
    asked = adapters.sdpa(hiding, conventions={"hidden_slots": "any"})
    names = ["hidden_slots_may_hold_nan"]
    found = [
        attnbench.check(spec, profile="quick", invariants=names) for spec in (safe, leaking, asked)
    ]
    assert [statuses(report)[names[0]] for report in found] == ["passed", "skipped", "failed"]
    assert "NaN in padding may reach the output" in str(found[1])


def test_what_judges_the_adapter_is_run_where_it_is_asked_for() -> None:
    report = attnbench.check(
        scaled_dot_product_attention, profile="quick", invariants=["copies_agree"]
    )
    assert statuses(report) == {"copies_agree": "passed"}


def test_a_function_as_flash_attention_takes_grouped_heads_and_no_masks() -> None:
    spec = adapters.flash(flashlike)
    assert spec.accepts == ("is_causal", "scale", "enable_gqa")
    report = attnbench.check(spec, profile="quick", invariants=FEW)
    assert report.ok, str(report)
    found = statuses(report)
    assert found["grouped_heads_equal_expanded_heads"] == "passed"
    assert found["masks_broadcast"] == "skipped"
    reasons = {outcome.invariant: outcome.reason for outcome in report.outcomes}
    assert "takes no masks" in reasons["masks_broadcast"]


def test_a_function_that_ignores_its_mask_is_told() -> None:
    def deaf(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        return scaled_dot_product_attention(query, key, value)

    report = attnbench.check(
        deaf, style="sdpa", profile="quick", invariants=["masking_equals_deleting"]
    )
    assert statuses(report) == {"masking_equals_deleting": "failed"}


def test_grouped_heads_a_function_does_not_take_are_refused() -> None:
    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value)

    (subject,) = resolve(adapters.sdpa(plain))
    module, inputs = subject.build(attnbench.Case(lead=(2, 2)))
    with pytest.raises(RefusalError, match="does not accept enable_gqa"):
        subject.output(module, inputs.replace(enable_gqa=True))


def test_a_test_module_is_parametrized_with_checks_of_a_function() -> None:
    ((subject, check),) = checks_of(
        [flashlike], style="flash", invariants=["masked_weights_are_zero"]
    )
    assert subject.name == "flashlike"
    assert check.outcome(subject).status == "passed"


def test_a_key_head_that_only_broadcasts_shows_no_grouped_heads() -> None:
    def broadcast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("blhd,bshd->bhls", q * q.shape[-1] ** -0.5, k)
        return torch.einsum("bhls,bshd->blhd", scores.softmax(-1), v)

    assert "enable_gqa" not in adapters.flash(broadcast).accepts
    assert "enable_gqa" in adapters.flash(flashlike).accepts


def test_weights_that_come_with_the_output_are_used_and_it_is_said() -> None:
    def attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        weights = ((query * query.shape[-1] ** -0.5) @ key.mT).softmax(-1)
        return weights @ value, weights

    report = attnbench.check(
        attention, style="sdpa", profile="quick", invariants=["weights_sum_to_one"]
    )
    assert report.ok, str(report)
    said = "its output is the first of what it returns, and the weights come with it"
    assert said in report.about[0]


def with_log_sum(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = blhd(q, k)
    return (scores.softmax(-1) @ v.transpose(1, 2)).transpose(1, 2), scores.logsumexp(-1).mT


def masked_with_log_sum(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if attn_mask is not None:
        given = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if given else scores + attn_mask
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def test_masks_are_tried_on_the_output_of_a_function_that_returns_more() -> None:
    spec = adapters.sdpa(masked_with_log_sum)
    assert spec.returns == ("output", "lse")
    (subject,) = resolve(spec)
    assert {*subject.conventions.masks} >= {"boolean", "floating"}


def with_entropy(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = blhd(q, k).softmax(-1)
    return (weights @ v.transpose(1, 2)).transpose(1, 2), -(weights.log() * weights).sum(-1)


def test_a_log_sum_may_be_turned_and_an_entropy_is_none() -> None:
    spec = flash(with_log_sum, conventions={"gradients": False})
    assert spec.returns == ("output", "lse")
    names = ["log_sums_are_those_of_the_scores", "splits_merge"]
    assert attnbench.check(spec, profile="quick", invariants=names).ok
    assert flash(with_entropy).returns == ("output",)
    (subject,) = resolve(flash(with_entropy))
    assert "one number a query, is not looked at" in " ".join(subject.about)


@pytest.mark.parametrize("found", [None, numpy.zeros((2, 3, 4, 8))], ids=["nothing", "an_array"])
def test_what_is_no_tensor_fails_the_contract_and_is_no_error_of_the_check(found: Any) -> None:
    report = attnbench.check(
        lambda query, key, value: found,
        style="sdpa",
        profile="quick",
        invariants=["keeps_the_contract"],
    )
    assert statuses(report) == {"keeps_the_contract": "failed"}, str(report)
    assert f"returned {type(found).__name__} for its output" in str(report)


def boolean_alone(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """Attention that inverts its mask, which no floating one can be."""
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    empty = scores.isneginf().all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ value


def fused_in_inference(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """Attention that takes floating masks only where no gradient is needed."""
    if torch.is_grad_enabled():
        return boolean_alone(query, key, value, attn_mask)
    return scaled_dot_product_attention(query, key, value, attn_mask)


@pytest.mark.parametrize("function", [boolean_alone, fused_in_inference])
def test_a_function_that_raises_for_floating_masks_is_given_boolean_ones(function: Any) -> None:
    spec = adapters.sdpa(function)
    assert spec.conventions["masks"] == ("boolean", "lengths")
    assert "masks" not in adapters.sdpa(scaled_dot_product_attention).conventions
    names = ["keeps_the_contract", "masking_equals_deleting"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert report.ok, str(report)


def nonzero_attends(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Attention that reads its mask as ones and zeros, whatever the dtype."""
    return boolean_alone(query, key, value, None if mask is None else mask != 0)


def added(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention that adds its mask to the scores, whatever the dtype."""
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    return (scores if mask is None else scores + mask).softmax(-1) @ value


def test_a_mask_of_ones_and_zeros_is_given_as_a_boolean_one() -> None:
    spec = adapters.sdpa(nonzero_attends)
    assert spec.conventions["masks"] == ("boolean", "lengths")
    report = attnbench.check(spec, profile="quick", invariants=["mask_forms_agree"])
    assert not report.of("failed"), str(report)
    assert "masks" not in adapters.sdpa(added).conventions


def test_an_output_of_another_dtype_fails_the_contract_and_is_no_error_of_the_trials() -> None:
    def double(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        return scaled_dot_product_attention(query, key, value, attn_mask).double()

    report = attnbench.check(double, style="sdpa", profile="quick", invariants=FEW)
    assert "float64" in next(outcome for outcome in report.outcomes if not outcome.ok).reason


def full_masks(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """Attention over (B, L, H, S), which turns a mask as it turns the scores."""
    scores = (query * query.shape[-1] ** -0.5 @ key.mT).transpose(1, 2)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask.transpose(1, 2), -torch.inf)
    return scores.softmax(-1).nan_to_num().transpose(1, 2) @ value


def test_a_function_that_raises_for_small_masks_is_given_those_of_all_scores() -> None:
    (subject,) = resolve(adapters.sdpa(full_masks))
    assert "masks are given as (B, H, L, S)" in " ".join(subject.about)
    names = ["keeps_the_contract", "masking_equals_deleting", "masks_broadcast"]
    report = attnbench.check(full_masks, style="sdpa", profile="quick", invariants=names)
    assert report.ok, str(report)
    (subject,) = resolve(adapters.sdpa(boolean_alone))
    assert "masks are given" not in " ".join(subject.about)


def running(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal linear attention, of as many queries as keys."""
    q, k = q.sigmoid(), k.sigmoid()
    state = (k[..., :, None] * v[..., None, :]).cumsum(1)
    sums = (q * k.cumsum(1)).sum(-1, keepdim=True)
    return (q[..., None, :] @ state).squeeze(-2) / sums


def test_a_causal_function_of_as_many_queries_as_keys_is_found_by_trying() -> None:
    spec = flash(running, reference=None)
    (subject,) = resolve(spec)
    assert "causal and takes as many queries as keys only" in " ".join(subject.about)
    names = ["keeps_the_contract", "future_does_not_leak", "weights_sum_to_one"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert report.ok, str(report)


def test_an_argument_for_padding_that_is_not_passed_is_named() -> None:
    def padded(
        q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor | None = None, eps: float = 0.0
    ) -> Tensor:
        return (blhd(q, k).softmax(-1) @ v.transpose(1, 2)).transpose(1, 2)

    (subject,) = resolve(flash(padded))
    assert "key_padding_mask not passed" in " ".join(subject.about)
    (subject,) = resolve(flash(with_log_sum))
    assert "not passed" not in " ".join(subject.about)


def filled(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -1e9)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1) @ value


def test_a_finite_number_in_place_of_minus_infinity_is_found_and_not_accused() -> None:
    spec = adapters.sdpa(filled, dtypes=("float32", "float64"))
    assert spec.conventions["mask_value"] == -1e9
    names = ["hidden_keys_stay_hidden_at_extreme_scores", "masking_equals_deleting"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert not report.of("failed", "error"), str(report)
    exact = adapters.sdpa(torch.nn.functional.scaled_dot_product_attention)
    assert "mask_value" not in exact.conventions
