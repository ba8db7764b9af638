"""Gradients of whole layers: what is wrong by little, and which backward is written by hand."""

from __future__ import annotations

from torch import Tensor, nn

from attnbench import LayerSpec
from tests.attention_functions import with_gradient
from tests.invariant_runs import run


class Layer(nn.Module):
    """Attention whose value has a gradient off by one in a hundred, or that rounds to float32."""

    def __init__(self, size: int, how: str) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.how = how

    def forward(self, hidden: Tensor) -> Tensor:
        scores = self.query(hidden) @ self.key(hidden).mT
        value = self.value(hidden)
        if self.how == "rounded":
            square = hidden.float().square().mean(-1, keepdim=True)
            value = self.value((hidden.float() * (square + 1e-6).rsqrt()).to(hidden))
            scores = scores.float().softmax(-1).to(hidden)
        elif self.how == "scaled":
            value = with_gradient(lambda gradient: 1.01 * gradient)(value)
        return scores.sigmoid() @ value


def told(how: str) -> str:
    spec = LayerSpec(name="layer", make=lambda size: Layer(size, how))
    found = run(spec, "gradients_are_right", shrink=True)
    return found.reason if found.status == "failed" else found.status


def test_a_gradient_that_is_off_by_one_in_a_hundred_is_found() -> None:
    found = told("scaled")
    assert "of hidden and parameter value.weight = " in found
    assert "right by parameter query.weight, parameter key.weight" in found


def test_a_right_layer_that_rounds_to_float32_within_is_not_accused() -> None:
    assert told("rounded") == "passed"
    assert told("plain") == "passed"
