"""Mechanisms: over any scoring function, that choose, that combine, and that look at few keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attnbench_plugins.mechanisms.forced_forward import expected

import attnbench
from attnbench.benchmark.memory import peak_bytes
from attnbench.errors import OptionError, ShapeError, UnknownNameError
from attnbench.subject.lookup import resolve


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


def test_a_nested_address_gives_the_scoring_function_its_options() -> None:
    module = resolve("multi_head(scoring=additive(hidden_size=3))")[0].make(4, 4, 4)
    assert module.scoring.score_vector.shape == (3,)
    assert made("soft", scoring="additive(hidden_size=3)").scoring.score_vector.shape == (3,)


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("structured_self", {"rows": 0}, OptionError, "rows"),
        ("structured_self", {"hidden_size": 0}, OptionError, "hidden_size"),
        ("concat_combine", {"slots": 0}, OptionError, "slots"),
        ("concat_combine", {"state_size": 5}, OptionError, "state_size"),
        ("concat_combine", {"output_size": 0}, OptionError, "output_size"),
        ("hard", {"hidden_size": 3}, OptionError, "hidden_size"),
        ("forced_forward", {"noise": -1.0}, OptionError, "noise"),
        ("local_monotonic", {"window": -1}, OptionError, "monotonic: window=-1.* at.least"),
        ("local_predictive", {"window": 0}, OptionError, "predictive: window=0.* at.least"),
        ("key_value", {"window": 0}, OptionError, "key_value: window=0.* at.least"),
        ("multi_head", {"heads": 3}, OptionError, "choose heads that divide query_size"),
        ("multi_head", {"heads": 0}, OptionError, "heads=0, kv_heads=0: choose heads"),
        ("multi_head", {"heads": 4, "kv_heads": 3}, OptionError, "kv_heads that divides heads"),
        ("multi_head", {"head": 2}, OptionError, "Did you mean 'heads'"),
        ("multi_head", {"scoring": "additiv"}, UnknownNameError, "'additive'"),
        ("multi_head", {"scoring": "multi_head"}, OptionError, "is not a scoring function"),
    ],
)
def test_an_option_that_cannot_be_is_one_clear_error(
    name: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        made(name, **options)


def test_a_scoring_function_that_needs_equal_sizes_cannot_serve_other_ones() -> None:
    with pytest.raises(ShapeError, match="dot needs query_size == key_size, got 6 and 3"):
        made("soft", 6, 3, 5, scoring="dot")


def test_heads_make_sizes_equal_for_any_scoring_function() -> None:
    module = made("multi_head", 4, 3, 4, scoring="gaussian")
    query, key, value = tensors(2)
    assert module(query, key[..., :3], value).shape == (2, 3, 4)


@pytest.mark.parametrize("name", ["soft", "multi_head"])
def test_features_other_than_the_module_was_made_for_are_an_error(name: Any) -> None:
    query, key, value = tensors(2)
    with pytest.raises(
        ShapeError, match=r"made for query_size, key_size, value_size = \(4, 4, 4\)"
    ):
        made(name)(query, key, value[..., :3])


def test_key_value_of_unequal_lengths_is_an_error() -> None:
    with pytest.raises(
        ShapeError, match="self-attention, but the query has length 3 and the key 5"
    ):
        made("key_value")(*tensors())


@pytest.mark.parametrize("name", ["local_monotonic", "local_predictive", "key_value"])
def test_memory_grows_with_the_length_and_not_with_its_square(name: Any) -> None:
    def peak(length: int) -> int:
        module, given = made(name), tensors(1, q_len=length, kv_len=length)
        given[0].requires_grad_()
        return peak_bytes(lambda: module(*given).sum().backward(), torch.device("cpu"))

    assert peak(1024) < 5 * peak(256)  # 16 times, were it L·S
