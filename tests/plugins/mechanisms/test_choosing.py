"""Mechanisms that choose: hard, monotonic, structured; and those that combine: static, concat."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attnbench_plugins.mechanisms.forced_forward import expected

import attnbench
from attnbench.errors import OptionError, ShapeError


def made(name: str, *sizes: int, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return attnbench.get(name).make(*(sizes or (4, 4, 4)), **options).double().eval()


def tensors(*lead: int, q_len: int = 3, kv_len: int = 5) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*lead, n, 4, generator=generator).double() for n in (q_len, kv_len, kv_len)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hard_picks_the_first_of_keys_that_float32_can_hardly_tell_apart(dtype: Any) -> None:
    module = made("hard", 1, 1, 1, scoring="dot").to(dtype)
    query, value = torch.ones(1, 1, dtype=dtype), torch.tensor([[1.0], [2.0], [3.0]], dtype=dtype)
    for gap, picked in ((2e-7, 1.0), (2e-6, 3.0)):
        key = torch.tensor([[1.0], [1.0], [1.0 + gap]], dtype=dtype)
        assert module(query, key, value).item() == picked


def test_hard_tells_small_scores_apart_beside_a_large_bias_on_another_key() -> None:
    module, (query, key, value) = made("hard", scoring="dot").float(), tensors()
    query, key, value = query.float() / 1024, key.float(), value.float()
    bias = torch.zeros(3, 5)
    bias[:, 2] = -1e4
    best = (query @ key.T + bias).double().argmax(-1)
    assert best.tolist() != [0, 0, 0]
    assert torch.equal(module(query, key, value, bias), value[best])


def test_hard_in_training_has_the_gradient_of_soft() -> None:
    module, given = made("hard").train(), tensors(2)
    value = given[2]
    _, weights = module(*given, return_weights=True)
    soft = module.scoring(*given[:2]).softmax(-1)
    vector = module.scoring.score_vector
    got, wanted = (torch.autograd.grad((w @ value).sum(), vector)[0] for w in (weights, soft))
    torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0, 1e4])
def test_the_parallel_form_is_finite_where_products_of_chances_underflow(size: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = (size * torch.randn(20, 400, generator=generator)).requires_grad_()
    weights = expected(scores, None)
    (gradient,) = torch.autograd.grad(weights.square().sum(), scores)
    assert weights.isfinite().all()
    assert gradient.isfinite().all()
    assert (weights.sum(-1) <= 1 + 1e-5).all()


def test_sharp_chances_make_training_and_evaluation_agree() -> None:
    module, (query, key, value) = made("forced_forward", scoring="dot"), tensors(2)
    hard = module(query * 1e4, key, value)
    torch.testing.assert_close(module.train()(query * 1e4, key, value), hard)


def test_a_query_without_keys_leaves_the_position_of_the_ones_behind_it() -> None:
    module, given = made("forced_forward", offset=100.0), tensors()
    mask = torch.tensor([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()
    for mode in (module.eval(), module.train()):
        _, weights = mode(*given, attn_mask=mask, return_weights=True)
        assert weights.sum(-1).round().tolist() == [1, 0, 1]
        assert weights.argmax(-1)[[0, 2]].tolist() == [2, 2]


def test_a_query_with_another_number_of_rows_is_an_error() -> None:
    with pytest.raises(ShapeError, match="rows=2, but the query has 3"):
        made("structured_self", rows=2)(*tensors())


def test_more_keys_than_slots_are_an_error() -> None:
    with pytest.raises(ShapeError, match="slots=4, but the key has length 5; make it with slots=5"):
        made("concat_combine", slots=4)(*tensors())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("structured_self", {"rows": 0}),
        ("structured_self", {"hidden_size": 0}),
        ("concat_combine", {"slots": 0}),
        ("concat_combine", {"state_size": 5}),
        ("concat_combine", {"output_size": 0}),
        ("hard", {"hidden_size": 3}),
        ("forced_forward", {"noise": -1.0}),
    ],
)
def test_an_option_that_cannot_be_is_one_clear_error(name: Any, options: Any) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        made(name, **options)
