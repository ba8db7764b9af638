"""Soft and multi-head attention, over any registered scoring function."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnbench
from attnbench.errors import OptionError, ShapeError, UnknownNameError
from attnbench.subject.lookup import resolve


def made(name: str, *sizes: int, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return attnbench.get(name).make(*(sizes or (6, 6, 5)), **options).double().eval()


def tensors(*lead: int, q_len: int = 3, kv_len: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(*lead, *shape, generator=generator).double()
        for shape in ((q_len, 6), (kv_len, 6), (kv_len, 5))
    ]


def test_a_nested_address_gives_the_scoring_function_its_options() -> None:
    module = resolve("multi_head(scoring=additive(hidden_size=3))")[0].make(4, 4, 4)
    assert module.scoring.score_vector.shape == (3,)
    assert made("soft", scoring="additive(hidden_size=3)").scoring.score_vector.shape == (3,)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"heads": 4}, OptionError, "choose heads that divide query_size"),
        ({"heads": 0}, OptionError, "heads=0, kv_heads=0: choose heads"),
        ({"heads": 6, "kv_heads": 4}, OptionError, "kv_heads that divides heads"),
        ({"head": 2}, OptionError, "Did you mean 'heads'"),
        ({"scoring": "additiv"}, UnknownNameError, "'additive'"),
        ({"scoring": "multi_head"}, OptionError, "is not a scoring function"),
    ],
)
def test_an_option_that_cannot_be_is_one_clear_error(
    options: Any, error: Any, message: Any
) -> None:
    with pytest.raises(error, match=message):
        made("multi_head", **options)


def test_a_scoring_function_that_needs_equal_sizes_cannot_serve_other_ones() -> None:
    with pytest.raises(ShapeError, match="dot needs query_size == key_size, got 6 and 3"):
        made("soft", 6, 3, 5, scoring="dot")


def test_heads_make_sizes_equal_for_any_scoring_function() -> None:
    module = made("multi_head", 6, 3, 5, scoring="gaussian")
    query, key, value = tensors(2)
    assert module(query, key[..., :3], value).shape == (2, 3, 5)


@pytest.mark.parametrize("name", ["soft", "multi_head"])
def test_features_other_than_the_module_was_made_for_are_an_error(name: Any) -> None:
    query, key, value = tensors(2)
    with pytest.raises(
        ShapeError, match=r"made for query_size, key_size, value_size = \(6, 6, 5\)"
    ):
        made(name)(query, key, value[..., :4])
