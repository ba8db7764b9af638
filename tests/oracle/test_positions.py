"""A reference that takes positions gets those of both tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import attnbench
from tests.invariant_runs import run


class Biased(nn.Module):
    """Products less the distance, whose last query is at the last key."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        where = torch.arange(key.shape[-2])
        own = torch.arange(query.shape[-2]) + key.shape[-2] - query.shape[-2]
        return query @ key.mT - (own[:, None] - where).abs()


class FromTheStart(Biased):
    """The first query is at the first key."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        own, where = (torch.arange(t.shape[-2]) for t in (query, key))
        return query @ key.mT - (own[:, None] - where).abs()


def reference(module: Any, q: list[float], k: list[float], i: int, j: int) -> float:
    return sum(a * b for a, b in zip(q, k, strict=True)) - abs(i - j)


def test_a_reference_with_positions_tells_where_tokens_are() -> None:
    spec = attnbench.ScoringSpec(
        name="biased",
        make=lambda q, k: Biased(),
        equal_sizes=True,
        reference=reference,
    )
    assert run(spec, "agrees_with_scalar_reference").status == "passed"
    wrong = replace(spec, make=lambda q, k: FromTheStart())
    assert run(wrong, "agrees_with_scalar_reference").status == "failed"
