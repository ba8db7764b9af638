from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import adapters
from attnbench.calling.styles.style_choice import adapted
from attnbench.errors import StyleError
from attnbench.subject.lookup import resolve


def attention(source: Tensor, memory: Tensor, content: Tensor, hides: Tensor | None = None) -> Any:
    scores = source @ memory.mT / source.shape[-1] ** 0.5
    weights = (scores if hides is None else scores.masked_fill(~hides, -1e9)).softmax(-1)
    return weights @ content, weights


CALL = "f(memory=key, source=query, content=value, hides=attn_mask)"


class Module(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(embed_dim, num_heads, batch_first=True)
        self.num_heads, self.batch_first = num_heads, True

    def forward(self, a: Tensor, b: Tensor, c: Tensor, hidden: Tensor | None = None) -> Tensor:
        output: Tensor = self.inner(a, b, c, attn_mask=hidden, need_weights=False)[0]
        return output


def test_arguments_of_other_names_are_passed_by_the_names_of_the_style() -> None:
    spec = adapters.sdpa(attention, call=CALL, name="renamed")
    query, key, value = (torch.randn(2, 3, n, 4) for n in (3, 5, 5))
    mask = torch.ones(3, 5, dtype=torch.bool).tril(1)
    output, weights = spec.make(4, 4, 4)(query, key, value, attn_mask=mask, return_weights=True)
    expected = attention(query, key, value, mask)
    assert torch.equal(output, expected[0])
    assert torch.equal(weights, expected[1])


def test_a_mask_in_which_true_hides_is_turned() -> None:
    spec = adapters.sdpa(attention, call=CALL.replace("attn_mask", "~attn_mask"), name="turned")
    query, key, value = (torch.randn(2, 3, n, 4) for n in (3, 5, 5))
    mask = torch.ones(3, 5, dtype=torch.bool).tril(1)
    output = spec.make(4, 4, 4)(query, key, value, attn_mask=mask)
    assert torch.equal(output, attention(query, key, value, ~mask)[0])


@pytest.mark.parametrize("named", ["f(source=queries, memory=keys, content=values)", "f(q, k, v)"])
def test_query_key_and_value_have_the_names_of_any_style(named: str) -> None:
    spec = adapters.sdpa(attention, call=named, name="plural")
    query, key, value = (torch.randn(2, 3, n, 4) for n in (3, 5, 5))
    output = spec.make(4, 4, 4)(query, key, value)
    assert torch.equal(output, attention(query, key, value)[0])


def test_a_class_is_renamed_by_its_forward() -> None:
    spec = adapters.multihead(Module, call="f(a=query, b=key, c=value, hidden=attn_mask)")
    report = attnbench.check(spec, profile="quick", invariants=["masked_slots_are_inert"])
    assert report.ok, str(report)


def test_the_names_stand_in_an_address() -> None:
    (subject,) = resolve(f"{__name__}:attention as sdpa(source=query, memory=key, content=value)")
    assert subject.spec.name == "attention"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("f()", "names no argument"),
        ("f(source=~query)", "'~query' is nothing that a style passes"),
        ("f(source=attn_mask, memory=~attn_mask)", "'attn_mask' is passed twice"),
        ("queries=query", "names no argument"),
        ("f(source=query, memory=key, contents=value)", "'contents' is no argument"),
        ("f(source=query, memory=key, content=worth)", "'worth' is nothing that a style passes"),
        ("f(source=query, memory=query, content=value)", "'query' is passed twice"),
    ],
)
def test_a_call_that_cannot_be_read_is_told_with_the_form(call: str, told: str) -> None:
    with pytest.raises(StyleError, match=told) as raised:
        adapted(attention, "sdpa", call=call)
    assert 'write it like "f(queries=query, keys=key, values=value)"' in str(raised.value)
