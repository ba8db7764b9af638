"""What a report offers where a failure is by design."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench.adapters import flash
from attnbench.checking.declarations import declaration
from attnbench.subject.lookup import resolve


def test_a_function_without_a_spec_is_told_what_a_command_takes(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def attention(query, key, value, attn_mask=None):\n"
        "    return (query @ key.mT).softmax(-1) @ value\n"
    )
    (subject,) = resolve(f"{file}:attention as sdpa")
    assert (
        declaration(subject, "finite_at_extremes") == '--exempt "finite_at_extremes=why" skips it'
    )
    told = "the convention empty_rows says so (--convention empty_rows=VALUE; attnbench.adapters."
    assert declaration(subject, "empty_rows_give_zeros").startswith(told)
    (named,) = resolve("scaled_dot")
    spec = 'exempt={"finite_at_extremes": "why"} in the spec skips it'
    assert declaration(named, "finite_at_extremes") == spec


def packed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of one tensor of queries, keys and values, as much code takes it."""
    query, key, value = torch.stack([q, k, v], 2).transpose(1, 3).unbind(2)
    return torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)


class PerHead(torch.nn.Module):
    """One temperature for each head."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: None = None) -> Tensor:
        scores = (query * query.shape[-1] ** -0.5) @ key.mT
        return (scores * torch.ones(query.shape[-3], 1, 1)).softmax(-1) @ value


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (
            flash(packed),
            "with as many keys as queries: sizes=lambda s: s.replace(kv_len=s.q_len)",
        ),
        (
            attnbench.MechanismSpec(
                name="per_head",
                make=lambda *sizes: PerHead(),
                equal_sizes=True,
                conventions={"masks": (), "per_head": True},
            ),
            "with a size before L: sizes=lambda s: s.replace(lead=s.lead or (1,))",
        ),
    ],
)
def test_a_subject_that_raises_is_told_which_sizes_it_takes(spec: object, told: str) -> None:
    report = attnbench.check(spec, profile="quick", invariants=["keeps_the_contract"])
    assert f"by design? it does not raise {told}" in str(report)


class Several(torch.nn.Linear):
    def forward(self, hidden: Tensor) -> Tensor:
        if hidden.shape[0] == 1:
            raise ValueError("more than one item")
        return super().forward(hidden)


def test_a_layer_that_raises_is_not_told_sizes_of_a_call() -> None:
    spec = attnbench.LayerSpec(name="several", make=lambda size: Several(size, size))
    report = attnbench.check(spec, profile="quick", invariants=["keeps_the_contract"])
    assert not report.ok
    assert "by design?" not in str(report)


class OfFourHeads(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        heads = hidden.view(*hidden.shape[:-1], 4, hidden.shape[-1] // 4)
        return heads.softmax(-1).flatten(-2)


def test_a_layer_that_raises_at_sizes_its_heads_do_not_divide_is_told_to_declare_sizes() -> None:
    spec = attnbench.adapters.layer(lambda size: OfFourHeads(), name="of_four_heads")
    (outcome,) = attnbench.check(spec, invariants=["keeps_the_contract"], profile="quick").outcomes
    assert outcome.failure is not None
    assert "at size 4: sizes=lambda n: max(1, n // 4) * 4" in str(outcome.failure.by_design)
