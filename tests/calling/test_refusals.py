"""What a callee refuses is no failure, and its own words say why."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench import adapters
from attnbench.calling.refusals import refusal_in
from attnbench.errors import RefusalError
from attnbench.subject.lookup import resolve
from tests.attention_functions import FEW, statuses


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

    names = ["keeps_the_contract", "masked_weights_are_zero", "masking_equals_deleting"]
    report = attnbench.check(strict, style="sdpa", profile="quick", invariants=names)
    assert not report.of("failed", "error", "inconclusive"), str(report)
    assert statuses(report)["masked_weights_are_zero"] == "passed"


def adds_none(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    scores = query @ key.mT
    if attn_mask is not None:
        scores = None + scores
    return scores.softmax(-1) @ value


def on_two_devices(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    if attn_mask is not None:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            "cuda:0 and cpu!"
        )
    return scaled_dot_product_attention(query, key, value)


@pytest.mark.parametrize("crashing", [adds_none, on_two_devices])
def test_a_crash_whose_words_are_those_of_a_refusal_fails(crashing: Any) -> None:
    (subject,) = resolve(adapters.sdpa(crashing))
    module, inputs = subject.build(subject.legal(attnbench.Case(mask="boolean")))
    with pytest.raises((TypeError, RuntimeError)) as raised:
        subject.output(module, inputs)
    assert raised.type is not RefusalError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("Unsupported dtype: float32"), "refuses it"),
        (RuntimeError("FlashAttention only support fp16 and bf16 data type"), "refuses it"),
        (RuntimeError("q must be on CUDA"), "needs a GPU"),
        (AssertionError("only works on CUDA tensors"), "needs a GPU"),
        (RuntimeError("index 5 is unsupportedly large"), None),
        (TypeError("unsupported operand type(s) for +: 'NoneType' and 'Tensor'"), None),
    ],
)
def test_only_a_sentence_of_the_callee_is_a_refusal(error: Exception, reason: str | None) -> None:
    try:
        raise error
    except Exception as caught:
        found = refusal_in(caught, "it", masked=False)
    assert (reason is None and found is None) or reason in str(found)


def test_nothing_on_a_gpu_can_need_one() -> None:
    error = RuntimeError("the index must be on cuda")
    assert refusal_in(error, "it", masked=False) is not None
    assert refusal_in(error, "it", masked=False, on_cpu=False) is None


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


@pytest.mark.parametrize(
    ("callee", "style", "masked"),
    [
        (complaining, "sdpa", "boolean"),
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


def on_a_gpu(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    raise AssertionError("Torch not compiled with CUDA enabled")


def test_a_function_that_needs_a_gpu_is_not_accused_and_says_how_to_check_it() -> None:
    report = attnbench.check(
        on_a_gpu, style="sdpa", profile="quick", invariants=["keeps_the_contract"]
    )
    assert statuses(report) == {"keeps_the_contract": "inconclusive"}
    assert "on_a_gpu needs a GPU" in report.outcomes[0].reason
    assert "--device cuda" in report.outcomes[0].reason
