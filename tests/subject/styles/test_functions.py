from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench import adapters
from attnbench.adapters import flash
from attnbench.checking.outcomes import CONTRACT
from attnbench.checking.parametrization import checks_of
from attnbench.errors import RefusalError, StyleError
from attnbench.subject.lookup import resolve


def flashlike(
    q: Tensor, k: Tensor, v: Tensor, softmax_scale: float | None = None, causal: bool = False
) -> Tensor:
    """Attention of (B, L, H, E), causality aligned to the bottom right."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
    scores = (q.double() * (softmax_scale or q.shape[-1] ** -0.5)) @ k.double().mT
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(k.shape[-2] - q.shape[-2])
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = scores.softmax(-1).nan_to_num(0.0)
    return (weights @ v.double()).to(q.dtype).transpose(1, 2)


def eager(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """As transformers' eager attention, in float32."""
    groups = module.num_key_value_groups
    key, value = (tensor.repeat_interleave(groups, 1) for tensor in (key, value))
    scores = (query * scaling) @ key.mT
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.float().softmax(-1).to(query.dtype)
    weights = torch.nn.functional.dropout(weights, dropout, training=module.training)
    return (weights @ value).transpose(1, 2).contiguous(), weights


FEW = [
    "agrees_with_scalar_reference",
    "causal_and_padding_combine",
    "grouped_heads_equal_expanded_heads",
    "hidden_slots_may_hold_nan",
    "keeps_the_contract",
    "leading_sizes_fold",
    "mask_forms_agree",
    "masks_broadcast",
    "masking_equals_deleting",
]


def statuses(report: attnbench.CheckReport) -> dict[str, str]:
    return {outcome.invariant: outcome.status for outcome in report.outcomes}


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


def test_a_function_of_transformers_interface_is_given_a_finite_mask() -> None:
    spec = adapters.interface(eager, dtypes=("float32",))
    report = attnbench.check(spec, profile="quick", invariants=FEW)
    assert report.ok, str(report)
    assert statuses(report)["masking_equals_deleting"] == "passed"


def test_a_function_that_ignores_its_mask_is_told() -> None:
    def deaf(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        return scaled_dot_product_attention(query, key, value)

    report = attnbench.check(
        deaf, style="sdpa", profile="quick", invariants=["masking_equals_deleting"]
    )
    assert statuses(report) == {"masking_equals_deleting": "failed"}


def test_what_a_function_refuses_is_skipped_with_its_own_words() -> None:
    def wide(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        if query.dtype in (torch.float16, torch.bfloat16):
            raise RuntimeError("half types are not supported")
        if attn_mask is not None:
            raise NotImplementedError("masks")
        return scaled_dot_product_attention(query, key, value)

    report = attnbench.check(wide, style="sdpa", profile="quick", invariants=FEW)
    assert not report.of("failed", "error", "inconclusive"), str(report)
    reasons = {outcome.invariant: outcome.reason for outcome in report.outcomes}
    assert "wide refuses it: NotImplementedError: masks" in reasons["masking_equals_deleting"]


@pytest.mark.parametrize(
    ("taken", "words"),
    [
        ("boolean", "attn_mask must be boolean"),
        ("floating", "the mask has to be a floating one"),
        ("keys", "only masks of one row are supported"),
    ],
)
def test_a_function_of_one_kind_of_mask_is_not_accused(taken: str, words: str) -> None:
    def strict(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        if attn_mask is not None:
            kind = "boolean" if attn_mask.dtype == torch.bool else "floating"
            if (attn_mask.shape[-2] != 1) if taken == "keys" else (kind != taken):
                raise TypeError(words)
        output = scaled_dot_product_attention(query, key, value, attn_mask)
        return output.nan_to_num(0.0)

    names = ["keeps_the_contract", "masked_weights_are_zero", "large_bias_hides"]
    report = attnbench.check(strict, style="sdpa", profile="quick", invariants=names)
    assert not report.of("failed", "error", "inconclusive"), str(report)
    assert statuses(report)["masked_weights_are_zero"] == "passed"


class Complaining(torch.nn.MultiheadAttention):
    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None
    ) -> Any:
        if query.shape[0] == 2:
            raise ValueError("attn_mask must be boolean")
        return super().forward(query, key, value, attn_mask=attn_mask)


def complaining(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    if query.shape[0] == 2:
        raise ValueError("attn_mask must be boolean")
    return scaled_dot_product_attention(query, key, value, attn_mask)


def complaining_layer(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    **given: Any,
) -> Any:
    if query.shape[0] == 2:
        raise ValueError("attention_mask should be boolean")
    return eager(module, query, key, value, attention_mask, **given)


def complaining_packs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Any,
    cu_seqlens_k: Any,
    max_seqlen_q: int,
    max_seqlen_k: int,
    causal: bool = False,
) -> Tensor:
    raise ValueError("the mask must be boolean")


@pytest.mark.parametrize(
    ("callee", "style", "masked"),
    [
        (complaining, "sdpa", "boolean"),
        (complaining_layer, "interface", "boolean"),
        (complaining_packs, "varlen", "causal"),
        (Complaining, "multihead", "boolean"),
    ],
)
def test_an_error_about_masks_is_a_refusal_only_of_calls_with_a_mask(
    callee: Any, style: str, masked: str
) -> None:
    (subject,) = resolve(getattr(adapters, style)(callee))
    for mask, error in [("none", ValueError), (masked, RefusalError)]:
        case = subject.legal(attnbench.Case(lead=(2,), mask=mask))
        module, inputs = subject.build(case)
        with pytest.raises(ValueError, match=r"(must|should) be boolean") as raised:
            subject.output(module, inputs)
        assert raised.type is error


def test_grouped_heads_a_function_does_not_take_are_refused() -> None:
    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return scaled_dot_product_attention(query, key, value)

    (subject,) = resolve(adapters.sdpa(plain))
    module, inputs = subject.build(attnbench.Case(lead=(2, 2)))
    with pytest.raises(RefusalError, match="does not accept enable_gqa"):
        subject.output(module, inputs.replace(enable_gqa=True))


@pytest.mark.parametrize(
    ("function", "style", "message"),
    [
        (flashlike, "interface", "argument 1 should be module. Its arguments fit sdpa on"),
        (eager, "sdpa", "argument 1 should be query. Its arguments fit interface."),
        (scaled_dot_product_attention, "flash", "its argument is_causal belongs to another style"),
        (lambda query, key: query, "sdpa", "argument 3 should be value"),
        (eager, "keras", "it makes no layer without module. Its arguments fit interface."),
        (scaled_dot_product_attention, "keras", "nothing tells its arguments"),
        (lambda: 3, "keras", "what it makes, 3, is no layer of Keras"),
        (3, "sdpa", "is of type int, which is not callable|cannot be called as sdpa"),
    ],
)
def test_a_style_that_does_not_fit_says_what_is_missing(
    function: Any, style: str, message: str
) -> None:
    with pytest.raises(StyleError, match=message):
        getattr(adapters, style)(function)


def test_without_a_style_only_exactly_known_objects_are_recognised() -> None:
    (subject,) = resolve("torch.nn.functional:scaled_dot_product_attention")
    assert subject.about[0].startswith("scaled_dot_product_attention: called as sdpa")
    with pytest.raises(StyleError, match="name the style with --as"):
        resolve(flashlike)


def test_the_layouts_that_a_signature_does_not_tell_apart_are_named() -> None:
    def bare(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention on ``(B, L, H, E)`` whose arguments are those of one on ``(B, H, L, E)``."""
        scores = torch.einsum("blhe,bshe->bhls", q / q.shape[-1] ** 0.5, k)
        return torch.einsum("bhls,bshe->blhe", scores.softmax(-1), v)

    told = r"fit sdpa on \(B, H, L, E\) or flash on \(B, L, H, E\); the signature does not say"
    with pytest.raises(StyleError, match=told):
        resolve(bare)
    report = attnbench.check(
        adapters.flash(bare), profile="quick", invariants=["agrees_with_float64"]
    )
    assert report.ok, report


def test_a_test_module_is_parametrized_with_checks_of_a_function() -> None:
    ((subject, check),) = checks_of(
        [flashlike], style="flash", invariants=["masked_weights_are_zero"]
    )
    assert subject.name == "flashlike"
    assert check.outcome(subject).status == "passed"


class Written(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def test_a_class_that_no_style_fits_is_told_what_to_write_instead() -> None:
    with pytest.raises(StyleError, match=r"Written is no spec.*Write a spec beside it.*Mechanism"):
        attnbench.check(Written)


def test_a_class_is_not_called_like_a_function_and_the_message_says_so() -> None:
    with pytest.raises(StyleError, match=r"Written cannot be called as sdpa: it is a class; write"):
        attnbench.check(Written, style="sdpa")


def on_a_gpu(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    raise AssertionError("Torch not compiled with CUDA enabled")


def test_a_function_that_needs_a_gpu_is_not_accused_and_says_how_to_check_it() -> None:
    report = attnbench.check(
        on_a_gpu, style="sdpa", profile="quick", invariants=["keeps_the_contract"]
    )
    assert statuses(report) == {"keeps_the_contract": "inconclusive"}
    assert "on_a_gpu needs a GPU" in report.outcomes[0].reason
    assert "--device cuda" in report.outcomes[0].reason


def test_a_key_head_that_only_broadcasts_shows_no_grouped_heads() -> None:
    def broadcast(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("blhd,bshd->bhls", q * q.shape[-1] ** -0.5, k)
        return torch.einsum("bhls,bshd->blhd", scores.softmax(-1), v)

    assert "enable_gqa" not in adapters.flash(broadcast).accepts
    assert "enable_gqa" in adapters.flash(flashlike).accepts


def test_a_class_under_a_functions_style_is_told_the_spec_to_paste() -> None:
    class Attention(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return value

    with pytest.raises(StyleError, match=r"SPEC = sdpa\(Attention\(\.\.\.\), name='Attention'\)"):
        adapters.sdpa(Attention)


def test_weights_that_come_with_the_output_are_used_and_it_is_said() -> None:
    def attention(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        weights = ((query * query.shape[-1] ** -0.5) @ key.mT).softmax(-1)
        return weights @ value, weights

    report = attnbench.check(
        attention, style="sdpa", profile="quick", invariants=["weights_sum_to_one"]
    )
    assert report.ok, str(report)
    assert (
        "its output is the first of what it returns, and the weights are the second"
        in (report.about[0])
    )


def blhd(query: Tensor, key: Tensor) -> Tensor:
    """The scores ``(B, H, L, S)`` of tensors ``(B, L, H, E)``."""
    return (query * query.shape[-1] ** -0.5).transpose(1, 2) @ key.permute(0, 2, 3, 1)


def with_log_sum(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    scores = blhd(q, k)
    return (scores.softmax(-1) @ v.transpose(1, 2)).transpose(1, 2), scores.logsumexp(-1).mT


def with_entropy(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    weights = blhd(q, k).softmax(-1)
    return (weights @ v.transpose(1, 2)).transpose(1, 2), -(weights.log() * weights).sum(-1)


def test_a_log_sum_may_be_turned_and_an_entropy_is_none() -> None:
    spec = flash(with_log_sum, conventions={"gradients": False})
    assert spec.returns == ("output", "lse")
    names = ["log_sums_are_those_of_the_scores", "splits_merge"]
    assert attnbench.check(spec, profile="quick", invariants=names).ok
    assert flash(with_entropy).returns == ("output",)


def scaled_by_head(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
) -> Tensor:
    """Row by row; the factors are ``(B, H)``."""
    rows = []
    for row, length in enumerate(cache_seqlens.tolist()):
        key, value = (
            cache[block_table[row].long()].flatten(0, 1)[:length].to(q.dtype)
            for cache in (k_cache, v_cache)
        )
        if k_descale is not None and v_descale is not None:
            key = key * k_descale[row][:, None].to(q.dtype)
            value = value * v_descale[row][:, None].to(q.dtype)
        scores = blhd(q[row : row + 1], key[None])
        if causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(length - q.shape[1])
            scores = scores.masked_fill(~hidden, -torch.inf)
        rows.append((scores.softmax(-1) @ value.transpose(0, 1)).transpose(1, 2))
    return torch.cat(rows)


def scaled_by_keys_factor(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
) -> Tensor:
    return scaled_by_head(
        q, k_cache, v_cache, cache_seqlens, block_table, causal, k_descale, k_descale
    )


def test_paged_functions_take_factors_by_head() -> None:
    names = ["scales_restore_keys_and_values", "pages_are_invisible"]
    found = [
        attnbench.check(function, style="paged", profile="quick", invariants=names).counts
        for function in (scaled_by_head, scaled_by_keys_factor)
    ]
    assert found == [{"passed": 2}, {"passed": 1, "failed": 1}]


def filled(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """A number stands for minus infinity that float16 does not hold."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask.bool(), -1e9)
    return scores.softmax(-1) @ value


def test_what_raises_in_half_types_only_is_told_how_to_leave_them_out() -> None:
    report = attnbench.check(filled, style="sdpa", profile="quick", invariants=[CONTRACT])
    assert "or --dtype float32 --dtype float64" in str(report)
