"""What scores, or weights, have in common that are not those of a reference in Python floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench import MechanismSpec, ScoringSpec
from attnbench.checking.cause.beside_reference import beside_reference
from attnbench.checking.cause.own_answers import own_mistake
from attnbench.subject.lookup import resolve


def dot(module: Any, query: list[float], key: list[float]) -> float:
    return math.fsum(a * b for a, b in zip(query, key, strict=True))


def distances(scores: Tensor) -> Tensor:
    """How far each key stands ahead of its query; less than 0 behind it."""
    queries, keys = (torch.arange(size) for size in scores.shape[-2:])
    return (keys - queries[:, None] - len(keys) + len(queries)).to(scores)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda scores, query, key: scores, None),
        (lambda scores, query, key: -scores, "reference_negated"),
        (lambda scores, query, key: scores / 2, "reference_scaled"),
        (lambda s, query, key: s + key.mT[..., :1, :], "reference_plus_product_of_keys"),
        (lambda s, query, key: s + query[..., :1], "reference_plus_product_of_queries"),
        (lambda s, query, key: s + key.mT[..., :1, :] + 3, "reference_plus_keys"),
        (lambda s, query, key: s + key.mT[..., :1, :].exp(), "reference_plus_keys"),
        (lambda s, query, key: s + query[..., :1].exp(), "reference_plus_queries"),
        (lambda s, query, key: s * key.mT[..., :1, :].exp(), "reference_times_keys"),
        (lambda s, query, key: s * query[..., :1].exp(), "reference_times_queries"),
        (
            lambda s, query, key: s + query[..., :1].exp() + key.mT[..., :1, :].exp(),
            "reference_plus_queries_and_keys",
        ),
        (
            lambda s, query, key: (
                s + torch.arange(s.shape[-1] * s.shape[-2]).reshape(s.shape[-2:]) % 5
            ),
            "reference_plus_places",
        ),
        (
            lambda s, query, key: (query.sum(-1)[..., None] + key.sum(-1)[..., None, :]).exp(),
            "reference_ranks_by_query",
        ),
        (lambda s, query, key: query[..., :-3] @ key.mT[..., :-3, :], "features_of_query_unread"),
        (
            lambda s, query, key: query[..., :-1] @ key.mT[..., 1:, :],
            "features_of_query_unread",
        ),
        (lambda scores, query, key: scores + 1, "reference_plus_one_number"),
        (lambda s, query, key: s + distances(s).square(), "reference_plus_distance"),
        (lambda s, query, key: s + distances(s).relu(), "reference_plus_distance_ahead"),
        (lambda s, query, key: s + (-distances(s)).relu(), "reference_plus_distance_behind"),
        (
            lambda s, query, key: (query.bfloat16() @ key.mT.bfloat16()).to(s),
            "reference_in_bfloat16",
        ),
        (lambda s, query, key: s + (s.to(torch.half) - s), "reference_in_float16"),
        (lambda s, query, key: 2 * s.bfloat16().to(s), None),
        (lambda scores, query, key: scores.square(), None),
        (lambda scores, query, key: scores.relu(), None),
        (lambda scores, query, key: -scores.relu(), None),
        (lambda scores, query, key: scores.tril(), None),
        (lambda scores, query, key: scores * 0, None),
    ],
)
def test_scores_that_differ_in_one_way_are_told(
    change: Callable[[Tensor, Tensor, Tensor], Tensor], found: str | None
) -> None:
    class Changed(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            return change(query @ key.mT, query, key)

    spec = ScoringSpec(name="mine", make=lambda *sizes: Changed(), equal_sizes=True, reference=dot)
    (subject,) = resolve(spec)
    assert beside_reference(subject) == found


def retained(module: Any, query: Any, key: Any, value: Any, allowed: Any) -> list[list[float]]:
    """Retention: a dot product times a power of the distance, for the keys up to the query's."""
    rows = []
    for i, q in enumerate(query, len(key) - len(query)):
        weights = [0.9 ** (i - j) * dot(None, q, k) for j, k in enumerate(key[: i + 1])]
        columns = zip(*value, strict=True)
        rows.append([math.fsum(map(float.__mul__, weights, column)) for column in columns])
    return rows


@pytest.mark.parametrize(
    ("decay", "ahead", "found"),
    [
        (0.9, 0, None),
        (0.8, 0, "reference_times_distance"),
        (0.9, 1, "reference_gives_other_keys"),
        (0.9, -4, "earlier_blocks_scaled_4"),
    ],
)
def test_weights_without_softmax_are_told(decay: float, ahead: int, found: str | None) -> None:
    class Retention(nn.Module):
        def forward(
            self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
        ) -> Tensor:
            q_len, kv_len = query.shape[-2], key.shape[-2]
            steps = torch.arange(kv_len - q_len, kv_len)[:, None] - torch.arange(kv_len)
            powers = torch.full((), decay, dtype=query.dtype) ** steps
            powers = powers.masked_fill(steps < min(0, -ahead), 0.0)
            if ahead < 0:  # blocks of so many keys, before which it decays once too little
                blocks = torch.arange(kv_len) // -ahead
                powers = powers / decay ** (blocks[-q_len:, None] > blocks).to(powers)
            return query @ key.mT * powers @ value

    spec = MechanismSpec(
        name="mine",
        make=lambda *sizes: Retention(),
        equal_sizes=True,
        reference=retained,
        laws=("pools_values",),
    )
    (subject,) = resolve(spec)
    assert beside_reference(subject) == found


def test_what_is_rounded_comes_before_scores_that_are_then_not_by_distance() -> None:
    class Lowered(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            steps = torch.arange(key.shape[-2]) * torch.tensor(0.7071).bfloat16()
            return query @ key.mT + steps.to(query)

    spec = ScoringSpec(
        name="mine",
        make=lambda *sizes: Lowered(),
        equal_sizes=True,
        reference=lambda m, q, k, i, j: dot(m, q, k) + float(torch.tensor(0.7071)) * j,
        laws=("leading_padding_equals_deleting",),
    )
    (subject,) = resolve(spec)
    assert own_mistake(subject) == "reference_in_bfloat16"


def quiet(module: Any, query: Any, key: Any, value: Any, allowed: Any) -> list[list[float]]:
    """Softmax with one more in the denominator."""
    rows = []
    for row in query:
        powers = [math.exp(dot(None, row, one)) for one in key]
        columns = zip(*value, strict=True)
        rows.append([dot(None, powers, column) / (1 + math.fsum(powers)) for column in columns])
    return rows


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda scores, key: scores, None),
        (lambda scores, key: scores / 2, "reference_scaled"),
        (lambda scores, key: scores + key.mT[..., :1, :], "reference_plus_keys"),
        (lambda scores, key: scores - 0.1 * distances(scores), "reference_plus_distance"),
        (lambda scores, key: scores - 0.1 * distances(scores) ** 2 % 3, "reference_plus_distance"),
        (lambda scores, key: scores.sin(), None),
        (None, "reference_times_queries"),
    ],
)
def test_scores_of_a_softmax_are_told_by_its_weights(change: Any, found: str | None) -> None:
    class Quiet(nn.Module):
        def forward(
            self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
        ) -> Tensor:
            scores = query @ key.mT
            most = scores.amax(-1, keepdim=True).clamp_min(0.0)
            powers = ((scores if change is None else change(scores, key)) - most).exp()
            beside = 1.0 if change is None else (-most).exp()
            return powers / (beside + powers.sum(-1, keepdim=True)) @ value

    spec = MechanismSpec(
        name="mine",
        make=lambda *sizes: Quiet(),
        equal_sizes=True,
        reference=quiet,
        laws=("pools_values",),
    )
    (subject,) = resolve(spec)
    assert beside_reference(subject) == found
