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


@pytest.mark.parametrize("name", SCORINGS)
def test_every_row_of_the_table_is_a_scoring_function_with_formula_source_and_reference(
    name: Any,
) -> None:
    spec = attnbench.get(name)
    assert spec.formula
    assert spec.source
    assert spec.reference is not None


@pytest.mark.parametrize("name", ["dot", "scaled_dot", "gaussian"])
def test_a_score_that_needs_equal_sizes_says_so(name: Any) -> None:
    with pytest.raises(ShapeError, match="needs query_size == key_size, got 2 and 7"):
        made(name, 2, 7)


@pytest.mark.parametrize("name", ["concat_tanh_sum", "self_additive"])
def test_a_hidden_layer_without_units_is_an_error(name: Any) -> None:
    with pytest.raises(SpecError, match="hidden_size = 0, but is at least 1"):
        made(name, hidden_size=0)
