"""The scoring functions, one behaviour at a time; the invariants hold them to the general ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnbench
from attnbench.errors import ShapeError, SpecError

SCORINGS = [
    "additive",
    "average",
    "bilinear",
    "concat_linear",
    "concat_tanh_sum",
    "dot",
    "gaussian",
    "scaled_dot",
    "self_additive",
    "self_tanh",
    "vector_sum",
]


def made(name: str, query_size: int = 3, key_size: int = 3, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return attnbench.get(name).make(query_size, key_size, **options).double()


def inputs(query_size: int = 3, key_size: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return tuple(
        torch.randn(2, n, size, generator=generator).double()
        for n, size in ((4, query_size), (5, key_size))
    )  # type: ignore[return-value]


@pytest.mark.parametrize("name", SCORINGS)
def test_every_row_of_the_table_is_a_scoring_function_with_formula_source_and_reference(
    name: Any,
) -> None:
    spec = attnbench.get(name)
    assert spec.formula
    assert spec.source
    assert spec.reference is not None


@pytest.mark.parametrize("name", SCORINGS)
def test_a_reference_agrees_with_the_module_on_random_parameters(name: Any) -> None:
    module, (query, key) = made(name), inputs()
    with torch.no_grad():
        for parameter in module.parameters():  # a bias starts at 0, where it hides
            parameter.normal_()
    scores = module(query, key)
    reference = attnbench.get(name).reference
    assert reference is not None
    expected = [[reference(module, q, k) for k in key[0].tolist()] for q in query[0].tolist()]
    torch.testing.assert_close(scores[0].detach(), torch.tensor(expected).double())


@pytest.mark.parametrize("name", ["dot", "scaled_dot", "gaussian"])
def test_a_score_that_needs_equal_sizes_says_so(name: Any) -> None:
    with pytest.raises(ShapeError, match="needs query_size == key_size, got 2 and 7"):
        made(name, 2, 7)


@pytest.mark.parametrize("name", ["concat_tanh_sum", "self_additive"])
def test_a_hidden_layer_without_units_is_an_error(name: Any) -> None:
    with pytest.raises(SpecError, match="hidden_size = 0, but is at least 1"):
        made(name, hidden_size=0)


def test_concat_linear_is_a_linear_unit_over_the_concatenation() -> None:
    module, (query, key) = made("concat_linear", 2, 7), inputs(2, 7)
    with torch.no_grad():
        module.bias.fill_(0.5)
    pair = torch.cat([query[:, 1], key[:, 3]], -1)
    expected = torch.nn.functional.linear(pair, module.weight[None], module.bias[None])
    torch.testing.assert_close(module(query, key)[:, 1, 3], expected.squeeze(-1))


def test_concat_tanh_sum_equals_additive_with_a_vector_of_equal_entries() -> None:
    concat, additive = made("concat_tanh_sum", 2, 7), made("additive", 2, 7)
    with torch.no_grad():
        additive.query_proj.weight.copy_(concat.weight[:, :2])
        additive.key_proj.weight.copy_(concat.weight[:, 2:])
        additive.score_vector.fill_(concat.scale)
    query, key = inputs(2, 7)
    torch.testing.assert_close(concat(query, key), additive(query, key))


@pytest.mark.parametrize("name", ["self_additive", "self_tanh", "average"])
def test_a_score_of_the_key_alone_is_in_the_querys_graph_with_a_gradient_of_zero(name: Any) -> None:
    query, key = inputs()
    query[0, 0, 0] = torch.nan
    query.requires_grad_()
    scores = made(name)(query, key)
    assert scores.isfinite().all()
    (gradient,) = torch.autograd.grad(scores.sum(), query)
    assert (gradient == 0).all()


def test_average_gives_the_mean_of_the_values_that_are_left() -> None:
    query, key = inputs()
    allowed = torch.tensor([True, False, True, True, False])
    output = attnbench.attend("average", query, key, key, attn_mask=allowed[None])
    torch.testing.assert_close(output, key[:, allowed].mean(1, keepdim=True).expand(2, 4, 3))
