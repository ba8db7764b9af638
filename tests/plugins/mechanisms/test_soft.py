"""Soft and multi-head attention, over any registered scoring function."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnbench
from attnbench.errors import OptionError, ShapeError, UnknownNameError
from attnbench.subject.lookup import installed, resolve

SCORINGS = [subject.name for subject in installed() if subject.kind == "scoring"]


def made(name: str, *sizes: int, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return attnbench.get(name).make(*(sizes or (6, 6, 5)), **options).double().eval()


def tensors(*lead: int, q_len: int = 3, kv_len: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(*lead, *shape, generator=generator).double()
        for shape in ((q_len, 6), (kv_len, 6), (kv_len, 5))
    ]


@pytest.mark.parametrize("scoring", SCORINGS)
def test_soft_equals_attend_with_its_scoring_function(scoring: Any) -> None:
    module, (query, key, value) = made("soft", scoring=scoring), tensors(2)
    expected = attnbench.attend(module.scoring, query, key, value, kernel="plain")
    torch.testing.assert_close(module(query, key, value), expected)


@pytest.mark.parametrize("scoring", SCORINGS)
def test_multi_head_equals_each_head_on_its_own(scoring: Any) -> None:
    module, (query, key, value) = made("multi_head", scoring=scoring, heads=3), tensors(2)
    heads = []
    for head in range(3):
        rows = slice(2 * head, 2 * head + 2)
        q, k, v = (
            tensor @ proj.weight[rows].T
            for tensor, proj in (
                (query, module.query_proj),
                (key, module.key_proj),
                (value, module.value_proj),
            )
        )
        heads.append(attnbench.attend(module.scoring, q, k, v, kernel="plain"))
    expected = torch.cat(heads, -1) @ module.out_proj.weight.T
    torch.testing.assert_close(module(query, key, value), expected)


def test_grouped_heads_equal_heads_with_repeated_projections() -> None:
    grouped, full = made("multi_head", heads=6, kv_heads=2), made("multi_head", heads=6)
    state = grouped.state_dict()
    for name in ("key_proj.weight", "value_proj.weight"):
        state[name] = state[name].repeat_interleave(3, 0)
    full.load_state_dict(state)
    torch.testing.assert_close(grouped(*tensors(2)), full(*tensors(2)))


def test_multi_head_equals_torchs_where_torchs_is_right() -> None:
    module: Any = made("multi_head", 6, 6, 6, heads=2)
    theirs = torch.nn.MultiheadAttention(6, 2, bias=False, batch_first=True).double().eval()
    with torch.no_grad():
        parts = (module.query_proj, module.key_proj, module.value_proj)
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.out_proj.weight.copy_(module.out_proj.weight)
    query, key, _ = tensors(2)
    mask = torch.rand(3, 4, generator=torch.Generator().manual_seed(2)) < 0.5
    mask[:, 0] = True
    output, weights = module(query, key, key, attn_mask=mask, return_weights=True)
    expected, mean_weights = theirs(query, key, key, attn_mask=~mask)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights, mean_weights)


def test_a_nested_address_gives_the_scoring_function_its_options() -> None:
    module = resolve("multi_head(scoring=additive(hidden_size=3))")[0].make(4, 4, 4)
    assert module.scoring.score_vector.shape == (3,)
    assert made("soft", scoring="additive(hidden_size=3)").scoring.score_vector.shape == (3,)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"heads": 8}, OptionError, "fewer features than heads"),
        ({"heads": 4}, OptionError, "choose heads that divide it"),
        ({"heads": 0}, OptionError, "at least 1"),
        ({"heads": 6, "kv_heads": 4}, OptionError, "kv_heads must divide heads"),
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
