"""Functions of query, key and value: each callee, and what its spec is."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench.adapters import flash, sdpa
from attnbench.errors import RefusalError
from attnbench.subject.lookup import resolve
from tests.attention_functions import FEW, blhd, flashlike, statuses


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


def with_log_sum(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = blhd(q, k)
    return (scores.softmax(-1) @ v.transpose(1, 2)).transpose(1, 2), scores.logsumexp(-1).mT


def masked_with_log_sum(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Any:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if attn_mask is not None:
        given = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if given else scores + attn_mask
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


def with_entropy(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = blhd(q, k).softmax(-1)
    return (weights @ v.transpose(1, 2)).transpose(1, 2), -(weights.log() * weights).sum(-1)


def boolean_alone(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    """Attention that inverts its mask, which no floating one can be."""
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    empty = scores.isneginf().all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ value


def fused_in_inference(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    """Attention that takes floating masks only where no gradient is needed."""
    if torch.is_grad_enabled():
        return boolean_alone(query, key, value, attn_mask)
    return scaled_dot_product_attention(query, key, value, attn_mask)


def nonzero_attends(query: Tensor, key: Tensor, value: Tensor, mask: Any = None) -> Tensor:
    """Attention that reads its mask as ones and zeros, whatever the dtype."""
    return boolean_alone(query, key, value, None if mask is None else mask != 0)


def added(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention that adds its mask to the scores, whatever the dtype."""
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    return (scores if mask is None else scores + mask).softmax(-1) @ value


def full_masks(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    """Attention over (B, L, H, S), which turns a mask as it turns the scores."""
    scores = (query * query.shape[-1] ** -0.5 @ key.mT).transpose(1, 2)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask.transpose(1, 2), -torch.inf)
    return scores.softmax(-1).nan_to_num().transpose(1, 2) @ value


def running(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal linear attention, of as many queries as keys."""
    q, k = q.sigmoid(), k.sigmoid()
    state = (k[..., :, None] * v[..., None, :]).cumsum(1)
    sums = (q * k.cumsum(1)).sum(-1, keepdim=True)
    return (q[..., None, :] @ state).squeeze(-2) / sums


def filled(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -1e9)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1) @ value


def in_half(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise ValueError("half types only")
    return scaled_dot_product_attention(query, key, value, mask)


def with_weights(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    weights = ((query * query.shape[-1] ** -0.5) @ key.mT).softmax(-1)
    return weights @ value, weights


def broadcast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Two key heads for four of the query raise."""
    return torch.einsum("bhls,bshd->blhd", blhd(q, k).softmax(-1), v)


def padded(q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Any = None, eps: float = 0) -> Tensor:
    return (blhd(q, k).softmax(-1) @ v.transpose(1, 2)).transpose(1, 2)


FINITE = {"hidden_slots": "finite"}
BOOLEAN = {"masks": ("boolean", "lengths")}
NONE = {"masks": ()}
SPECS: list[tuple[Any, Any, dict[str, Any]]] = [
    (
        sdpa,
        scaled_dot_product_attention,
        {
            "accepts": ("is_causal", "dropout_p", "scale", "enable_gqa"),
            "conventions": {"causal": "top_left", **FINITE},
        },
    ),
    (
        sdpa,
        with_options,
        {
            "accepts": ("is_causal", "scale", "window_size", "softcap", "sinks", "alibi_slopes"),
            "conventions": {"causal": "top_left", **FINITE, "internal_dtype": "float32"},
        },
    ),
    (sdpa, hiding, {"conventions": {**BOOLEAN, **FINITE}}),
    (sdpa, emptying, {"conventions": BOOLEAN}),
    (sdpa, boolean_alone, {"conventions": {**BOOLEAN, **FINITE}}),
    (sdpa, fused_in_inference, {"conventions": {**BOOLEAN, **FINITE}}),
    (sdpa, nonzero_attends, {"conventions": {**BOOLEAN, **FINITE}}),
    (sdpa, added, {"conventions": FINITE}),
    (sdpa, filled, {"conventions": {"mask_value": -1e9, "empty_rows": "nan", **FINITE}}),
    (sdpa, full_masks, {"notes": "masks are given as (B, H, L, S), since it raises for (L, S)"}),
    (sdpa, in_half, {"dtypes": ("bfloat16", "float16"), "notes": "it raises ValueError: half"}),
    (sdpa, with_weights, {"accepts": ("return_weights",), "notes": "the weights come with it"}),
    (sdpa, masked_with_log_sum, {"returns": ("output", "lse"), "conventions": FINITE}),
    (flash, with_log_sum, {"returns": ("output", "lse"), "notes": "comes with it, as (B, L, H)"}),
    (flash, with_entropy, {"returns": ("output",), "notes": "what comes with it is not looked at"}),
    (flash, flashlike, {"accepts": ("is_causal", "scale", "enable_gqa"), "conventions": NONE}),
    (flash, broadcast, {"accepts": (), "conventions": NONE}),
    (flash, padded, {"notes": "key_padding_mask not passed"}),
    (
        flash,
        running,
        {
            "conventions": {**NONE, "causal": "always"},
            "notes": "it is causal and takes as many queries as keys only (found by trying)",
        },
    ),
]


@pytest.mark.parametrize(
    ("style", "function", "found"), SPECS, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_spec_says_what_the_signature_and_small_calls_show(
    style: Any, function: Any, found: dict[str, Any]
) -> None:
    spec = style(function)
    for field, value in found.items():
        got = getattr(spec, field)
        assert value in " ".join(got) if field == "notes" else got == value, field
    assert spec.reference is not None
    assert spec.name == function.__name__


PASSING: list[tuple[Any, list[str]]] = [
    (sdpa(with_options, dtypes=("float32", "bfloat16")), list(OPTIONS)),
    (sdpa(emptying), ["hidden_slots_may_hold_nan"]),
    (sdpa(boolean_alone), ["keeps_the_contract", "masking_equals_deleting"]),
    (sdpa(full_masks), ["masking_equals_deleting", "masks_broadcast"]),
    (sdpa(filled, dtypes=("float32",)), ["masking_equals_deleting"]),
    (sdpa(with_weights), ["weights_sum_to_one"]),
    (flash(flashlike), ["grouped_heads_equal_expanded_heads", "leading_sizes_fold"]),
    (flash(running, reference=None), ["future_does_not_leak", "weights_sum_to_one"]),
    (
        flash(with_log_sum, conventions={"gradients": False}),
        ["log_sums_are_those_of_the_scores", "splits_merge"],
    ),
]


@pytest.mark.parametrize(("spec", "names"), PASSING, ids=lambda each: getattr(each, "name", ""))
def test_right_functions_pass(spec: Any, names: list[str]) -> None:
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert statuses(report) == dict.fromkeys(names, "passed"), str(report)


def deaf(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    return scaled_dot_product_attention(query, key, value)


def double(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value).double()


@pytest.mark.parametrize(
    ("spec", "name", "told"),
    [
        (sdpa(deaf), "masking_equals_deleting", "deaf"),
        (sdpa(double), "keeps_the_contract", "float64"),
        (
            sdpa(hiding, conventions={"hidden_slots": "any"}),
            "hidden_slots_may_hold_nan",
            "with nan",
        ),
        (sdpa(lambda query, key, value: None, name="n"), "keeps_the_contract", "returned NoneType"),
        (
            sdpa(lambda query, key, value: numpy.zeros((2, 3)), name="a"),
            "keeps_the_contract",
            "returned ndarray for its output",
        ),
    ],
    ids=["deaf", "double", "hiding", "nothing", "an_array"],
)
def test_wrong_functions_fail(spec: Any, name: str, told: str) -> None:
    report = attnbench.check(spec, profile="quick", invariants=[name])
    assert statuses(report) == {name: "failed"}, str(report)
    assert told in str(report)


@pytest.mark.slow
def test_torchs_fused_attention_is_accused_of_nothing_but_no_positive_scale_beside_causality() -> (
    None
):
    report = attnbench.check(scaled_dot_product_attention, style="sdpa", profile="quick")
    failed = [outcome for outcome in report.outcomes if outcome.status not in ("passed", "skipped")]
    assert [outcome.invariant for outcome in failed] == ["scale_multiplies_scores"]
    assert "with scale=-0.5, output" in failed[0].reason
    assert "mask causal" in str(report)


def test_what_a_function_does_not_take_is_refused_and_skipped() -> None:
    (subject,) = resolve(sdpa(with_weights))
    module, inputs = subject.build(attnbench.Case(lead=(2, 2)))
    with pytest.raises(RefusalError, match="does not accept enable_gqa"):
        subject.output(module, inputs.replace(enable_gqa=True))
    report = attnbench.check(flash(flashlike), profile="quick", invariants=FEW)
    reasons = {outcome.invariant: outcome.reason for outcome in report.outcomes}
    assert "takes no masks" in reasons["masks_broadcast"]


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query * self.factor.to(query).mean(), key, value)


@pytest.mark.parametrize("style", [sdpa, flash])
def test_a_users_module_is_left_as_it_is(style: Any) -> None:
    module = Scaled()
    style(module)
    assert module.training
    assert module.factor.dtype == torch.float64
