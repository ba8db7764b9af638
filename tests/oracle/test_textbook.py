"""Textbook attention against the zoo's, whose options are methods, and against torch's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attnbench_zoo.right.attention import ATTENTION
from attnbench_zoo.right.attention import OPTIONS as ZOO
from attnbench_zoo.right.positions import DISTANCE

from attnbench.cases.case import MASKS, Case
from attnbench.oracle.textbook import is_textbook, textbook_output
from attnbench.subject.lookup import resolve
from attnbench.subject.tensors import make_inputs

OPTIONS: dict[str, Any] = {
    "scale": -0.7,
    "softcap": 1.5,
    "window_size": (2, 1),
    "sinks": torch.tensor([0.5, -1.0, 2.0]),
    "alibi_slopes": torch.tensor([0.5, 0.0, 1.0]),
}


@pytest.mark.parametrize("names", [*[(name,) for name in OPTIONS], tuple(OPTIONS), ()])
@pytest.mark.parametrize("mask", MASKS)
def test_two_references_agree_on_every_option(names: tuple[str, ...], mask: str) -> None:
    case = Case((2, 3), 4, 6, 4, 4, 3, dtype="float64", mask=mask, seed=3)
    inputs = make_inputs(case).replace(**{name: OPTIONS[name] for name in names})
    (subject,) = resolve(ZOO)
    right = subject.output(subject.build(case)[0], inputs)
    torch.testing.assert_close(textbook_output(inputs), right)


def test_grouped_heads_are_repeated_in_place() -> None:
    inputs = make_inputs(Case((2, 2), 4, 6, 4, 4, 3, dtype="float64"))
    query = torch.randn(2, 4, 4, 4, dtype=torch.float64)
    grouped = inputs.replace(query=query, enable_gqa=True)
    right = torch.nn.functional.scaled_dot_product_attention(
        query, inputs.key, inputs.value, enable_gqa=True
    )
    torch.testing.assert_close(textbook_output(grouped), right)


def test_a_mechanism_with_other_scores_is_not_textbook() -> None:
    assert is_textbook(resolve(ATTENTION)[0])
    assert not is_textbook(resolve(DISTANCE)[0])
    assert not is_textbook(resolve("scaled_dot")[0])
