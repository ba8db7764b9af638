"""What is told of a scoring function that is right with a small change of what it computes with."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench import ScoringSpec
from attnbench.cases.case import Case
from attnbench.invariants.toolkit.score_repairs import repaired_scores
from attnbench.subject.lookup import resolve


class Distance(nn.Module):
    """Minus the distance of L·q and L·k over √3E."""

    def __init__(self, mistake: str, size: int) -> None:
        super().__init__()
        self.L, self.mistake = nn.Parameter(torch.randn(size, size)), mistake

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        matrix = self.L if self.mistake == "transposed" else self.L.mT
        apart = (query @ matrix).unsqueeze(-2) - (key @ matrix).unsqueeze(-3)
        squares = apart.square().sum(-1)
        lengths = squares if self.mistake == "root" else squares.sqrt()
        lengths = squares.log1p() if self.mistake == "log" else lengths
        shared = 1 if self.mistake == "scale" else 3
        scores = -lengths / math.sqrt(shared * query.shape[-1])
        return -scores if self.mistake == "sign" else scores


def reference(module: Any, query: list[float], key: list[float]) -> float:
    gaps = [a - b for a, b in zip(query, key, strict=True)]
    rows = (math.fsum(x * y for x, y in zip(row, gaps, strict=True)) for row in module.L.tolist())
    return -math.sqrt(math.fsum(x * x for x in rows) / (3 * len(query)))


@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("", ""),
        ("transposed", "it is right if L is transposed"),
        ("root", "is replaced by its root"),
        ("log", "is instead what it is made of, replaced by its root"),
        ("scale", ".sum(-1) is divided by 3"),
        ("sign", "is multiplied by -1"),
    ],
)
def test_the_change_that_makes_scores_those_of_the_reference_is_told(
    mistake: str, told: str
) -> None:
    spec = ScoringSpec(
        name="mine",
        make=lambda size, other: Distance(mistake, size),
        equal_sizes=True,
        reference=reference,
    )
    (subject,) = resolve(spec)
    found = repaired_scores(subject, Case((), 1, 2, 2, 2, 1))
    assert found.endswith(told)
    assert bool(found) == bool(told)


class Penalised(nn.Module):
    """q·k/√E - |i - j|, whose distance is divided by √E or 3 too."""

    def __init__(self, mistake: str, size: int) -> None:
        super().__init__()
        self.divisor = 3.0 if mistake == "number" else math.sqrt(size)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        column = torch.arange(key.shape[-2]).to(query)
        apart = (column[-query.shape[-2] :, None] - column).abs() / self.divisor
        return query @ key.mT / math.sqrt(query.shape[-1]) - apart


def penalised(module: Any, query: list[float], key: list[float], i: int, j: int) -> float:
    product = math.fsum(x * y for x, y in zip(query, key, strict=True))
    return product / math.sqrt(len(query)) - abs(i - j)


@pytest.mark.parametrize("mistake", ["number", "size"])
def test_a_factor_is_told_only_if_it_is_that_of_the_counterexample(mistake: str) -> None:
    spec = ScoringSpec(
        name="mine",
        make=lambda size, other: Penalised(mistake, size),
        equal_sizes=True,
        reference=penalised,
    )
    (subject,) = resolve(spec)
    found = repaired_scores(subject, Case((), 1, 2, 2, 2, 1))
    assert found.endswith("is multiplied by 3") is (mistake == "number")
    assert ("is multiplied by" in found) is (mistake == "number")


class Tempered(nn.Module):
    """A product times a learned number, which should be times its power of e."""

    def __init__(self) -> None:
        super().__init__()
        self.number = nn.Parameter(torch.tensor(0.5))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.mT * (self.number + 0.25)


def tempered(module: Any, query: list[float], key: list[float]) -> float:
    product = math.fsum(x * y for x, y in zip(query, key, strict=True))
    return product * math.exp(module.number.item() + 0.25)


def test_a_change_of_one_number_is_told() -> None:
    spec = ScoringSpec(
        name="mine", make=lambda *_: Tempered(), equal_sizes=True, reference=tempered
    )
    (subject,) = resolve(spec)
    found = repaired_scores(subject, Case((), 1, 2, 2, 2, 1))
    assert found.endswith("is replaced by its power of e")
