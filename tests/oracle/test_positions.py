"""A reference that takes positions gets those of both tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from attnbench_zoo.right.scorings import SPECS, Distant
from torch import Tensor

from tests.invariant_runs import run


class FromTheStart(Distant):
    """The first query is at the first key."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        own, where = (torch.arange(t.shape[-2]) for t in (query, key))
        scores = query * query.shape[-1] ** -0.5 @ key.mT
        return scores - 0.5 * (own[:, None] - where).abs()


def reference(module: Any, q: list[float], k: list[float], i: int, j: int) -> float:
    return sum(a * b for a, b in zip(q, k, strict=True)) * len(q) ** -0.5 - 0.5 * abs(i - j)


def test_a_reference_with_positions_tells_where_tokens_are() -> None:
    spec = replace(SPECS["distant"], reference=reference)
    assert run(spec, "agrees_with_scalar_reference").status == "passed"
    wrong = replace(spec, make=FromTheStart)
    assert run(wrong, "agrees_with_scalar_reference").status == "failed"
