"""The assertions that anybody's tests can use."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attnbench_answers.closeness import Expected, assert_attention_close, assert_close
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as sdpa

import attnbench
from attnbench import Inputs
from attnbench.errors import (
    DeviceError,
    DtypeError,
    InvariantViolation,
    MaskError,
    ShapeError,
    UsageError,
)
from attnbench.testing import stages_of

HALVES = (torch.bfloat16, torch.float16)
DTYPES = (torch.float64, torch.float32, *HALVES)


def _tensors(
    dtype: torch.dtype, *, q_len: int = 5, kv_len: int = 7, size: int = 8, seed: int = 0
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 3, q_len, size), (2, 3, kv_len, size), (2, 3, kv_len, 4))
    return [
        torch.randn(s, generator=generator, dtype=torch.float64).to(dtype=dtype) for s in shapes
    ]


def _textbook(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value


@given(
    st.sampled_from(DTYPES),
    st.integers(1, 40),
    st.integers(1, 70),
    st.sampled_from((1, 2, 8, 64)),
    st.integers(0, 2**31),
)
@settings(max_examples=150, deadline=None)
def test_right_outputs_are_close(dtype: Any, q_len: Any, kv_len: Any, size: Any, seed: Any) -> None:
    query, key, value = _tensors(dtype, q_len=q_len, kv_len=kv_len, size=size, seed=seed)
    for output in (sdpa(query, key, value), _textbook(query, key, value)):
        assert_attention_close(output, query, key, value)


def test_an_output_in_half_precision_is_not_close_for_float32() -> None:
    query, key, value = _tensors(torch.float32)
    narrow = _textbook(*(t.bfloat16() for t in (query, key, value))).float()
    with pytest.raises(AssertionError, match="times that"):
        assert_attention_close(narrow, query, key, value)
    assert_attention_close(narrow, query, key, value, internal_dtype=torch.bfloat16)


def test_masks_lengths_and_grouped_heads_have_the_usual_meaning() -> None:
    query, key, value = _tensors(torch.float32, q_len=4, kv_len=4)
    mask = torch.ones(4, 4, dtype=torch.bool).tril()
    output = sdpa(query, key, value, is_causal=True)
    assert_attention_close(output, query, key, value, attn_mask=mask)
    assert_attention_close(output, query, key, value, is_causal=True)
    shared = sdpa(query, key[:, :1], value[:, :1], enable_gqa=True)
    assert_attention_close(shared, query, key[:, :1], value[:, :1], enable_gqa=True)
    shorter = sdpa(query, key[..., :2, :], value[..., :2, :])
    lengths = torch.tensor([2, 2])
    assert_attention_close(shorter, query, key, value, valid_lens=lengths)


def test_the_causal_corner_is_told_apart() -> None:
    query, key, value = _tensors(torch.float32, q_len=3, kv_len=6)
    output = sdpa(query, key, value, is_causal=True)
    assert_attention_close(output, query, key, value, is_causal=True, causal="top_left")
    with pytest.raises(InvariantViolation):
        assert_attention_close(output, query, key, value, is_causal=True)


def test_an_empty_row_has_to_be_zeros() -> None:
    query, key, value = _tensors(torch.float32)
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    output = sdpa(query, key, value, attn_mask=mask)
    assert_attention_close(output, query, key, value, attn_mask=mask)
    output[..., 2, :] = value.mean(-2)
    with pytest.raises(InvariantViolation, match=r"\[\d, \d, 2, \d\]"):
        assert_attention_close(output, query, key, value, attn_mask=mask)


SLOPES = torch.tensor([0.5, 0.25, 0.125])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("mistake", "given"),
    [
        ({"scale": 1.0}, {}),
        ({}, {"softcap": 0.5}),
        ({}, {"alibi_slopes": SLOPES}),
        ({"alibi_slopes": -SLOPES}, {"alibi_slopes": SLOPES}),
        ({}, {"sinks": 16 * SLOPES}),
        ({"window_size": (2, 0)}, {"window_size": (3, 0)}),
        ({"window_size": (3, 1)}, {"window_size": (3, 0)}),
        ({}, {"is_causal": True}),
    ],
)
def test_an_option_that_is_forgotten_or_misread_is_refused(
    dtype: Any, mistake: Any, given: Any
) -> None:
    tensors = _tensors(dtype)
    output = stages_of(Inputs(*tensors, **mistake)).output.to(dtype)
    with pytest.raises(InvariantViolation):
        assert_attention_close(output, *tensors, **given)


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_not_finite_is_not_close(wrong: Any) -> None:
    query, key, value = _tensors(torch.float32)
    output = sdpa(query, key, value)
    output[0, 0, 0, 0] = wrong
    with pytest.raises(InvariantViolation, match=r"output\[0, 0, 0, 0\]"):
        assert_attention_close(output, query, key, value)


def test_padding_that_holds_nan_costs_nothing() -> None:
    query, key, value = _tensors(torch.float32)
    output = sdpa(query, key[..., :5, :], value[..., :5, :])
    key[..., 5:, :], value[..., 5:, :] = math.nan, math.nan
    assert_attention_close(output, query, key, value, valid_lens=torch.tensor([5, 5]))


@pytest.mark.parametrize("dtype", HALVES)
def test_an_error_of_two_units_of_a_value_shows_in_a_mean_of_many(dtype: Any) -> None:
    """Rounding errors of 256 values do not add up, they cancel."""
    query, key, value = _tensors(dtype, q_len=64, kv_len=256, size=64)
    right = Expected(Inputs(query, key, value)).output
    assert_attention_close(right.to(dtype), query, key, value)
    with pytest.raises(InvariantViolation, match="times that"):
        assert_attention_close(right + 2 * torch.finfo(dtype).eps, query, key, value)


def test_any_function_has_a_budget_from_its_inputs() -> None:
    x, y = torch.randn(6, 5), torch.randn(5, 4)
    assert_close(x @ y, torch.matmul, (x, y))
    assert_close((x.half() @ y.half()), torch.matmul, (x.half(), y.half()))
    with pytest.raises(InvariantViolation, match="the float64 run has"):
        assert_close((x.half() @ y.half()).float(), torch.matmul, (x, y))
    with pytest.raises(UsageError, match="expected is a Tensor, but should be a function"):
        assert_close(x, x, (x, y))


SQUARE = _tensors(torch.float32, q_len=7)
OUTPUT = sdpa(*SQUARE)


@pytest.mark.parametrize(
    ("changes", "error", "complaint"),
    [
        ({"actual": OUTPUT.transpose(1, 2)}, ShapeError, r"transpose\(1, 2\)"),
        ({"actual": OUTPUT.int()}, DtypeError, "actual is torch.int32"),
        ({"actual": OUTPUT.to("meta")}, DeviceError, "has no values"),
        ({"key": SQUARE[1][..., :4]}, ShapeError, "query has 8 features, and key 4"),
        ({"key": SQUARE[1][:, :2]}, ShapeError, "leading sizes differ"),
        ({"attn_mask": torch.ones(5, 5)}, MaskError, r"attn_mask has shape \(5, 5\)"),
    ],
)
def test_arguments_that_do_not_fit_are_one_error(
    changes: dict[str, Any], error: type[Exception], complaint: str
) -> None:
    query, key, value = SQUARE
    right: dict[str, Any] = {"actual": OUTPUT, "query": query, "key": key, "value": value}
    assert_attention_close(**right)
    with pytest.raises(error, match=complaint):
        assert_attention_close(**{**right, **changes})


def test_both_are_public_and_a_fixture_hands_one_out(attention_close: Any) -> None:
    assert attnbench.assert_attention_close is assert_attention_close is attention_close
    assert attnbench.assert_close is assert_close


def test_inputs_wider_than_the_output_are_told() -> None:
    query, key, value = _tensors(torch.float64)
    output = sdpa(query.float(), key.float(), value.float())
    with pytest.raises(InvariantViolation, match=r"query torch.float64: pass the inputs that the"):
        assert_attention_close(output, query, key, value)
    assert_attention_close(output, query, key, value, internal_dtype=torch.float32)


def test_long_rows_of_values_beyond_float32_have_a_budget_of_their_own() -> None:
    for size in (1e-30, 1e-12, 1.0, 1e12, 1e30):
        query, key, value = _tensors(torch.float32, q_len=64, kv_len=128)
        value *= size
        assert_attention_close(sdpa(query, key, value), query, key, value)
        with pytest.raises(InvariantViolation):
            assert_attention_close(sdpa(query, key, value) + 1e-4 * size, query, key, value)
