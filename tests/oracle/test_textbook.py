"""Textbook attention against a second one in Python floats, and against torch's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attnbench_zoo.right.attention import ATTENTION
from attnbench_zoo.right.positions import DISTANCE
from torch import Tensor

from attnbench import MechanismSpec
from attnbench.cases.case import MASKS, Case
from attnbench.oracle.references import allowed_and_bias
from attnbench.oracle.textbook import is_textbook, textbook_output
from attnbench.subject.lookup import resolve
from attnbench.subject.tensors import Inputs, make_inputs

OPTIONS: dict[str, Any] = {
    "scale": -0.7,
    "softcap": 1.5,
    "window_size": (2, 1),
    "sinks": torch.tensor([0.5, -1.0, 2.0]),
    "alibi_slopes": torch.tensor([0.5, 0.0, 1.0]),
}


def by_floats(inputs: Inputs) -> Tensor:
    """The definition of each option, one number at a time."""
    # the mask as it is given, without what the options add
    plain = inputs.replace(window_size=None, alibi_slopes=None)
    allowed, bias = allowed_and_bias(plain)
    query, key, value = (t.double() for t in (inputs.query, inputs.key, inputs.value))
    items, heads, q_len, size = query.shape
    kv_len = key.shape[-2]
    output = torch.zeros(items, heads, q_len, value.shape[-1], dtype=torch.float64)
    for b in range(items):
        for h in range(heads):
            for i in range(q_len):
                scores: dict[int, float] = {}
                for j in range(kv_len):
                    place = i + kv_len - q_len
                    near = inputs.window_size is None or (
                        place - inputs.window_size[0] <= j <= place + inputs.window_size[1]
                    )
                    if not (near and allowed[b, h, i, j]):
                        continue
                    product = sum(query[b, h, i].mul(key[b, h, j]).tolist())
                    score = product * (size**-0.5 if inputs.scale is None else inputs.scale)
                    if inputs.softcap is not None:
                        score = inputs.softcap * math.tanh(score / inputs.softcap)
                    if inputs.alibi_slopes is not None:
                        score -= float(inputs.alibi_slopes[h]) * abs(place - j)
                    scores[j] = score + float(bias[b, h, i, j])
                total = sum(math.exp(score) for score in scores.values())
                if inputs.sinks is not None:
                    total += math.exp(float(inputs.sinks[h]))
                for j, score in scores.items():
                    output[b, h, i] += math.exp(score) / total * value[b, h, j]
    return output


@pytest.mark.parametrize("names", [*[(name,) for name in OPTIONS], tuple(OPTIONS), ()])
@pytest.mark.parametrize("mask", MASKS)
def test_two_references_agree_on_every_option(names: tuple[str, ...], mask: str) -> None:
    case = Case((2, 3), 4, 6, 4, 4, 3, dtype="float64", mask=mask, seed=3)
    inputs = make_inputs(case).replace(**{name: OPTIONS[name] for name in names})
    torch.testing.assert_close(textbook_output(inputs), by_floats(inputs))


def test_grouped_heads_are_repeated_in_place() -> None:
    inputs = make_inputs(Case((2, 2), 4, 6, 4, 4, 3, dtype="float64"))
    query = torch.randn(2, 4, 4, 4, dtype=torch.float64)
    grouped = inputs.replace(query=query, enable_gqa=True)
    right = torch.nn.functional.scaled_dot_product_attention(
        query, inputs.key, inputs.value, enable_gqa=True
    )
    torch.testing.assert_close(textbook_output(grouped), right)


def test_a_mechanism_with_other_scores_is_not_textbook() -> None:
    assert isinstance(ATTENTION.spec, MechanismSpec)
    assert is_textbook(resolve(ATTENTION.spec)[0])
    assert not is_textbook(resolve(DISTANCE.spec)[0])
    assert not is_textbook(resolve("scaled_dot")[0])
