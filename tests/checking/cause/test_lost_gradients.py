"""The lines that keep a gradient from what it is computed of are told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench import ScoringSpec, check


def without_grad(tensor: Tensor) -> Tensor:
    with torch.no_grad():
        norm = tensor.norm(dim=-1, keepdim=True)
    return tensor / (norm + 1)


def detached(tensor: Tensor) -> Tensor:
    norm = tensor.norm(dim=-1, keepdim=True) + 1
    return tensor / norm.detach()


def of_data(tensor: Tensor) -> Tensor:
    norm = tensor.data.norm(dim=-1, keepdim=True) + 1
    return tensor / norm


def doubled(tensor: Tensor) -> Tensor:
    return tensor / (1 + tensor.detach().square() + tensor.detach().abs())


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(tensor)
        return tensor.square()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        return gradient * ctx.saved_tensors[0]


def of_its_own(tensor: Tensor) -> Tensor:
    return Squared.apply(tensor)


class Normed(nn.Module):
    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.norm(query) @ key.mT


@pytest.mark.parametrize(
    ("norm", "line"),
    [
        (without_grad, "no_grad at test_lost_gradients.py:{}: norm = tensor.norm("),
        (detached, "detach at test_lost_gradients.py:{}: return tensor / norm.detach()"),
        (of_data, "data at test_lost_gradients.py:{}: norm = tensor.data.norm("),
        (doubled, "detach at test_lost_gradients.py:{}: return tensor / (1 + tensor.detach()"),
        (of_its_own, ""),
    ],
)
def test_the_line_at_which_a_gradient_is_lost_is_told(norm: Any, line: str) -> None:
    spec = ScoringSpec(name="mine", make=lambda *sizes: Normed(norm), equal_sizes=True)
    (found,) = check(spec, profile="quick", invariants=["gradients_are_right"]).outcomes
    assert found.status == "failed"
    _, told, after = found.reason.partition("it is right once gradients pass ")
    start, _, rest = line.partition("{}")
    assert after.startswith(start) and rest in after if line else not told
