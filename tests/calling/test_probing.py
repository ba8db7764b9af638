"""Small functions with one convention set on purpose each: what is found is what is set."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench.adapters import probe
from attnbench.errors import StyleError
from attnbench.subject.lookup import resolve


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any = None,
    is_causal: bool = False,
    *,
    fill: float = -math.inf,
    factor: float | None = None,
) -> Tensor:
    every = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
    seen = every if attn_mask is None else attn_mask
    seen = seen & every.tril() if is_causal else seen
    scores = (query * (query.shape[-1] ** -0.5 if factor is None else factor)) @ key.mT
    return scores.masked_fill(~seen, fill).softmax(-1) @ value


def made(**options: Any) -> Any:
    def f(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, is_causal: bool = False
    ) -> Tensor:
        return attention(query, key, value, attn_mask, is_causal, **options)

    return f


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, {"masks": ("boolean", "lengths"), "hidden_slots": "finite", "causal": "top_left"}),
        ({"fill": -1e9}, {"mask_value": -1e9, "empty_rows": "mean"}),
    ],
)
def test_what_is_found_is_what_was_set(options: Any, found: dict[str, Any]) -> None:
    probed = probe(made(**options))
    assert probed.style == "sdpa"
    assert {key: probed.conventions[key] for key in found} == found
    assert {"extra_keys", "per_head", "internal_dtype"} <= {*probed.unknown}
    assert not {*probed.unknown} & {*probed.conventions}


def test_the_spec_of_a_probe_is_held_to_its_formula_only_where_it_computes_that() -> None:
    assert probe(made()).spec.reference is not None
    other = probe(made(factor=1.0))
    assert other.spec.reference is None
    report = attnbench.check(other.spec, profile="quick", invariants=["keeps_the_contract"])
    assert report.ok, str(report)


def test_a_class_is_made_and_arguments_may_have_other_names() -> None:
    by_heads = probe(nn.MultiheadAttention)
    assert by_heads.style == "multihead"
    assert by_heads.conventions["empty_rows"] == "nan"

    def lectured(source: Tensor, memory: Tensor, content: Tensor) -> Tensor:
        return attention(source, memory, content)

    assert probe(lectured, call="f(source=query, memory=key, content=value)").style == "sdpa"
    with pytest.raises(StyleError, match="takes no query, key and value"):
        probe(nn.TransformerEncoderLayer(16, 2, batch_first=True))


def test_the_conventions_of_a_probe_pass_the_checks() -> None:
    (subject,) = resolve(probe(made(fill=-1e9)).spec)
    names = ["masking_equals_deleting", "causal_and_padding_combine", "mask_forms_agree"]
    report = attnbench.check(subject.spec, profile="quick", invariants=names, dtypes=["float32"])
    assert report.ok, str(report)
