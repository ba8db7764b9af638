"""Right scoring functions, as short as they can be."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

import attnbench
from attnbench.testing import widen
from attnbench_zoo.base import Twin

__all__ = [
    "ADDITIVE",
    "BILINEAR",
    "GAUSSIAN",
    "SCALED_DOT",
    "VECTOR_SUM",
    "Additive",
    "Bilinear",
    "Dot",
    "Gaussian",
    "VectorSum",
]


class Dot(nn.Module):
    """The dot product over the root of the size; the query is scaled before it."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        query, key = widen(query, key)
        return (query / math.sqrt(query.shape[-1])) @ key.mT


class Bilinear(nn.Module):
    """A matrix between query and key."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(query_size, key_size))
        self.scale = math.pow(query_size * key_size, -0.25)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """So that scores have variance 1."""
        nn.init.normal_(self.weight, std=self.scale)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        query, key, weight = widen(query, key, self.weight)
        return (query @ (weight * self.scale)) @ key.mT


class Gaussian(nn.Module):
    """Half of the squared distance, with its sign turned and a learned bandwidth."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.bandwidth = nn.Parameter(torch.tensor((2 * query_size) ** -0.25))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        query, key, bandwidth = widen(query, key, self.bandwidth)
        distance = (query.unsqueeze(-2) - key.unsqueeze(-3)) * bandwidth
        return -0.5 * distance.square().sum(-1)


class VectorSum(nn.Module):
    """A number for each query, and one for each key."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.query_vector = nn.Parameter(torch.randn(query_size) * (2 * query_size) ** -0.5)
        self.key_vector = nn.Parameter(torch.randn(key_size) * (2 * key_size) ** -0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        query, key, w_q, w_k = widen(query, key, self.query_vector, self.key_vector)
        return (query @ w_q).unsqueeze(-1) + (key @ w_k).unsqueeze(-2)


class Additive(nn.Module):
    """A hidden layer of tanh units over the projected query and key."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.query_proj = nn.Linear(query_size, 16, bias=False)
        self.key_proj = nn.Linear(key_size, 16, bias=False)
        self.score_vector = nn.Parameter(torch.empty(16))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """So that scores have variance 1: the mean square of a tanh unit is 0.394."""
        for proj in (self.query_proj, self.key_proj):
            nn.init.normal_(proj.weight, std=(2 * proj.in_features) ** -0.5)
        nn.init.normal_(self.score_vector, std=(0.394 * 16) ** -0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """Scores ``(..., L, S)``."""
        query, key, w_q, w_k, w_v = widen(
            query, key, self.query_proj.weight, self.key_proj.weight, self.score_vector
        )
        hidden = (query @ w_q.mT).unsqueeze(-2) + (key @ w_k.mT).unsqueeze(-3)
        return hidden.tanh() @ w_v


def _twin(name: str, make: type[nn.Module]) -> Twin:
    spec = attnbench.get(name)
    assert isinstance(spec, attnbench.ScoringSpec)
    return Twin(name, replace(spec, make=make))


SCALED_DOT = _twin("scaled_dot", Dot)
BILINEAR = _twin("bilinear", Bilinear)
GAUSSIAN = _twin("gaussian", Gaussian)
VECTOR_SUM = _twin("vector_sum", VectorSum)
ADDITIVE = _twin("additive", Additive)
