"""The term in which scores are not those of a reference is told."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import ScoringSpec
from attnbench.invariants.toolkit.wrong_terms import wrong_term
from attnbench.subject.lookup import resolve


class Relative(nn.Module):
    """A product, a bias by the query, and one by the key, whose distance has the wrong sign."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.of_query = nn.Parameter(torch.randn(21, size))
        self.of_key = nn.Parameter(torch.randn(21, size))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        q_len, kv_len = query.shape[-2], key.shape[-2]
        ahead = torch.arange(kv_len) - torch.arange(q_len)[:, None] - (kv_len - q_len)
        scores = query @ key.mT
        scores = scores + torch.einsum("...le,lse->...ls", query, self.of_query[10 + ahead])
        return scores + torch.einsum("...se,lse->...ls", key, self.of_key[10 + ahead])


def dot(one: list[float], other: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def relative(module: Relative, q: list[float], k: list[float], i: int, j: int) -> float:
    of_query = dot(q, module.of_query[10 + j - i].tolist())
    return dot(q, k) + of_query + dot(k, module.of_key[10 + i - j].tolist())


class Weighed(nn.Module):
    """A product plus one with a vector, which should be the tanh of it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.randn(size))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.mT + (key @ self.vector)[..., None, :]


def weighed(module: Weighed, q: list[float], k: list[float]) -> float:
    return dot(q, k) + math.tanh(dot(k, module.vector.tolist()))


def told(made: Any, reference: Any) -> str:
    spec = ScoringSpec(
        name="mine", make=lambda q, k: made(q), equal_sizes=True, reference=reference
    )
    (subject,) = resolve(spec)
    return wrong_term(subject)


def test_the_parameter_without_which_scores_are_right_is_told_with_its_line() -> None:
    text = told(Relative, relative)
    assert text.startswith(
        "\n  it is right where of_key or the key is 0; of_key reaches the scores"
    )
    assert "key, self.of_key[10 + ahead])" in text
    assert text.endswith("\n  of the distances j - i of key and query, 0 alone is right")
    text = told(Weighed, weighed)
    assert text.startswith(
        "\n  it is right where vector is 0; vector reaches the scores in test_wrong_terms.py"
    )
    assert "distances" not in text


def test_nothing_is_told_of_right_scores_or_where_zeros_leave_no_scores() -> None:
    class Product(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(factor))

        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            return self.factor * query @ key.mT

    assert told(lambda size: Product(1.0), lambda module, q, k: dot(q, k)) == ""
    assert told(lambda size: Product(2.0), lambda module, q, k: dot(q, k)) == ""
