"""Small functions, each with one convention set on purpose: what a probe infers is what is set."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attnbench_zoo import Entry, entries
from torch import Tensor, nn

import attnbench
from attnbench.adapters import multihead, probe
from attnbench.errors import StyleError
from attnbench.specs.conventions import Conventions
from attnbench.subject.lookup import resolve

FOLLOWING = [entry for entry in entries() if entry.topic == "conventions"]


@pytest.mark.parametrize("right", FOLLOWING, ids=lambda right: right.name)
def test_right_implementations_follow_what_is_inferred(right: Entry) -> None:
    assert isinstance(right.spec, attnbench.MechanismSpec)
    declared = {**vars(Conventions()), **right.spec.conventions}
    found = probe(right.spec).conventions
    for key, value in found.items():
        if key != "masks":
            assert value == declared[key], key
    assert set(found.get("masks", ())) <= {*Conventions(masks=declared["masks"]).masks}
    assert set(right.spec.conventions) - {"mask_value"} <= set(found)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    *,
    fill: float = -math.inf,
    factor: float | None = None,
    inner: torch.dtype | None = None,
    extra: int = 0,
) -> Tensor:
    q, k = (t if inner is None else t.to(inner) for t in (query, key))
    scores = (q * (q.shape[-1] ** -0.5 if factor is None else factor)) @ k.mT
    scores = scores.masked_fill(~mask, fill)
    none = torch.zeros(*scores.shape[:-1], extra, dtype=scores.dtype)
    weights = torch.cat([scores, none], -1).softmax(-1)[..., : key.shape[-2]]
    return weights.to(query.dtype) @ value


def made(corner: str = "", **options: Any) -> Any:
    def f(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, is_causal: bool = False
    ) -> Tensor:
        every = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
        seen = every if attn_mask is None else attn_mask
        if is_causal or corner == "always":
            if corner == "square" and every.shape[0] != every.shape[1]:
                raise ValueError("square")
            seen = seen & every.tril(0 if corner == "top_left" else key.shape[-2] - query.shape[-2])
        return attention(query, key, value, seen, **options)

    return f


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, {"causal": "bottom_right", "empty_rows": "nan", "hidden_slots": "finite"}),
        ({}, {"masks": ("boolean",), "positions": "none", "per_head": False, "gradients": True}),
        ({"corner": "top_left"}, {"causal": "top_left"}),
        ({"corner": "square"}, {"causal": "square"}),
        ({"corner": "always"}, {"causal": "always"}),
        ({"fill": -1e9}, {"mask_value": -1e9, "empty_rows": "mean"}),
        ({"fill": -65504.0}, {"mask_value": -65504.0}),
        ({"inner": torch.float32}, {"internal_dtype": "float32"}),
        ({"inner": torch.bfloat16}, {"internal_dtype": "bfloat16"}),
        ({"extra": 2}, {"extra_keys": 2}),
    ],
)
def test_what_is_inferred_is_what_was_set(options: Any, found: dict[str, Any]) -> None:
    probed = probe(made(**options))
    assert probed.style == "sdpa"
    assert {key: probed.conventions[key] for key in found} == found


def test_a_call_that_refuses_gradients_gives_none() -> None:
    def forward_only(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if torch.is_grad_enabled() and query.requires_grad:
            raise RuntimeError("no backward pass")
        return attention(query, key, value, torch.ones(()).bool())

    assert probe(forward_only).conventions["gradients"] is False


def test_the_spec_of_a_probe_is_held_to_its_formula_only_where_it_computes_that() -> None:
    assert probe(made()).spec.reference is not None
    other = probe(made(factor=1.0))
    assert other.spec.reference is None
    report = attnbench.check(other.spec, profile="quick", invariants=["keeps_the_contract"])
    assert report.ok, str(report)


def test_what_no_call_tells_is_named() -> None:
    def corner_by_length(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False) -> Tensor:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
        return attention(q, k, v, seen.tril(int(q.shape[-2] != k.shape[-2])) if is_causal else seen)

    probed = probe(corner_by_length)
    assert "causal" in probed.unknown
    assert "causal" not in probed.conventions


def test_a_class_is_made_and_arguments_may_have_other_names() -> None:
    by_heads = probe(nn.MultiheadAttention)
    assert by_heads.style == "multihead"
    assert by_heads.conventions["empty_rows"] == "nan"  # with its weights
    with_zero_key = multihead(lambda embed_dim, num_heads: zero_key(embed_dim, num_heads))
    assert probe(with_zero_key).conventions["extra_keys"] == 1

    def lectured(source: Tensor, memory: Tensor, content: Tensor) -> Tensor:
        return attention(source, memory, content, torch.ones(()).bool())

    assert probe(lectured, call="f(source=query, memory=key, content=value)").style == "sdpa"
    with pytest.raises(StyleError, match="takes no query, key and value"):
        probe(nn.TransformerEncoderLayer(16, 2, batch_first=True))


def zero_key(embed_dim: int, num_heads: int) -> nn.Module:
    return nn.MultiheadAttention(embed_dim, num_heads, add_zero_attn=True, batch_first=True)


def test_the_conventions_of_a_probe_pass_the_checks() -> None:
    (subject,) = resolve(probe(made("top_left", fill=-1e9)).spec)
    names = ["masking_equals_deleting", "causal_and_padding_combine", "mask_forms_agree"]
    report = attnbench.check(subject.spec, profile="quick", invariants=names, dtypes=["float32"])
    assert report.ok, str(report)
