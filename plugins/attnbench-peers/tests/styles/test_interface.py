"""Attention functions of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attnbench_peers.styles.interface import interface
from torch import Tensor

import attnbench
from attnbench.errors import StyleError


def eager(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
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


def test_a_function_of_transformers_interface_is_given_a_finite_mask() -> None:
    names = ["masking_equals_deleting", "grouped_heads_equal_expanded_heads", "leading_sizes_fold"]
    report = attnbench.check(
        interface(eager, dtypes=("float32",)), profile="quick", invariants=names
    )
    assert [o.status for o in report.outcomes] == ["passed"] * 3, str(report)


def test_other_arguments_are_no_interface() -> None:
    def plain(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return value

    with pytest.raises(StyleError, match="cannot be called as interface: argument 1 should be mod"):
        interface(plain)
