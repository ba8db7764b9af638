"""The judge's own right answers, and how it measures errors."""

import functools
import math
import random

import pytest
import torch
from attnbench_judge.right_answers import RightOutput, error_of_rows
from torch.nn.functional import scaled_dot_product_attention as fused

from attnbench import Inputs


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def error(inputs: Inputs, output: torch.Tensor) -> float:
    return RightOutput(inputs, random.Random(0)).error(output)


def test_an_error_in_any_row_is_seen() -> None:
    inputs = Inputs(drawn(1, 2, 30, 8), drawn(1, 2, 40, 8), drawn(1, 2, 41, 8)[..., :40, :])
    output = fused(inputs.query, inputs.key, inputs.value)
    assert error_of_rows(inputs, 1, [3, 29], output) <= 1.0
    assert error(inputs, output) <= 1.0
    output[0, 1, 17] = 0.0
    assert error_of_rows(inputs, 1, [17], output) > 100
    assert error(inputs, output) > 10
    assert error_of_rows(inputs, 0, [17], output) <= 1.0


def test_the_worst_element_is_found() -> None:
    inputs = Inputs(drawn(2, 3, 30, 8), drawn(2, 3, 40, 8), drawn(2, 3, 41, 8)[..., :40, :])
    output = fused(inputs.query, inputs.key, inputs.value)
    right = float(output[1, 2, 17, 5])
    for wrong in (9.0, math.nan):
        output[1, 2, 17, 5] = wrong
        place, got, expected = RightOutput(inputs, random.Random(0)).furthest(output)
        assert place == (1, 2, 17, 5)
        assert [got, expected] == pytest.approx([wrong, right], abs=1e-6, nan_ok=True)


def test_rows_that_rounding_moves_most_are_not_accused() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        query, key, value = (torch.randn(1, 1, n, 16, generator=generator) for n in (257, 96, 96))
        inputs = Inputs(32 * query, key, value)
        output = fused(inputs.query, key, value)
        assert error(inputs, output) <= 1.0


@pytest.mark.parametrize("size", [256, 1024])
def test_products_that_are_summed_in_order_are_not_accused(size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        query, key, value = (torch.randn(3, 7, n, size, generator=generator) for n in (1, 2, 2))
        key = key * torch.tensor([0.1, 3.0]).unsqueeze(-1)
        products = (query.unsqueeze(-2) * key.unsqueeze(-3)).unbind(-1)
        weights = (functools.reduce(torch.add, products) * size**-0.5).softmax(-1)
        assert error(Inputs(query, key, value), weights @ value) <= 1.0


def test_keys_that_are_summed_in_order_are_not_accused() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 1, n, 64, generator=generator) for n in (6000, 19, 19))
    key, value = key * torch.linspace(4.0, 0.1, 19).unsqueeze(-1), value[..., :16] + 9.0
    scores = query * 0.125 @ key.mT
    powers = (scores - scores.amax(-1, keepdim=True)).exp().unsqueeze(-1)
    total = functools.reduce(torch.add, powers.unbind(-2))
    terms = (powers * value.unsqueeze(-3)).unbind(-2)
    output = functools.reduce(torch.add, terms) / total
    assert error(Inputs(query, key, value), output) <= 1.0


def test_scores_far_below_zero_may_be_rounded_to_a_half_type() -> None:
    query, key, value = ((8 * drawn(1, 1, n, 16)).bfloat16() for n in (32, 100, 101))
    inputs = Inputs(
        query, key, value[..., :100, :], attn_mask=torch.full((32, 100), -48384.0).bfloat16()
    )
    output = (query @ key.mT * 0.25 + inputs.attn_mask).softmax(-1) @ inputs.value
    assert error(inputs, output) <= 1.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("keys", [16, 600])
def test_eight_bits_are_an_error_in_half_types(dtype: torch.dtype, keys: int) -> None:
    query, key, value = (drawn(1, 2, n, 64).to(dtype) for n in (64, keys, keys + 1))
    value = value[..., :keys, :]
    inputs = Inputs(query, key, value)
    assert error(inputs, fused(query, key, value)) <= 1.0
    scores = (query @ key.mT) * 64**-0.5  # every operation rounds to the half type
    assert error(inputs, scores.softmax(-1) @ value) <= 1.0
    narrow = (t.to(torch.float8_e4m3fn).to(dtype) for t in (query, key, value))
    assert error(inputs, fused(*narrow)) > 1.0


def test_sixteen_bits_are_an_error_in_float32() -> None:
    def narrow(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """A product of float32 as three products of bfloat16."""
        parts = [
            (t.bfloat16().float(), (t - t.bfloat16()).bfloat16().float()) for t in (left, right)
        ]
        (high, low), (other_high, other_low) = parts
        return high @ other_high + high @ other_low + low @ other_high

    query, key, value = (2 * drawn(1, 2, n, 64) for n in (256, 512, 513))
    inputs = Inputs(query, key, value[..., :512, :])
    value = inputs.value
    assert error(inputs, fused(query, key, value)) <= 0.5
    weights = (narrow(query, key.mT) / 8).softmax(-1)
    assert error(inputs, narrow(weights, value)) > 1.0


def test_weights_below_the_least_normal_number_may_be_zero() -> None:
    query, key = torch.ones(1, 1, 8, 1), torch.full((1, 1, 16, 1), -88.0)
    value = torch.ones(1, 1, 16, 1)
    key[..., 0, :] = value[..., 0, :] = 0.0
    inputs = Inputs(query, key, value)
    output = torch.zeros(1, 1, 8, 1)  # as torch's fused attention gives, for 9e-38
    assert error(inputs, output) <= 1.0
    assert error(inputs.replace(key=0.8 * key), output) > 1.0
