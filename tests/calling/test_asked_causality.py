"""A layer that asks for causality is held to it, whatever it computes."""

from pathlib import Path

import pytest
from attnbench_plugins.adapters.adaptation import spec_of

import attnbench
from tests.calling.sources import found

LAYER = """
class Layer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
    def forward(self, x):
        q, k, v, ones = self.q(x), self.k(x), self.v(x), torch.ones(x.shape[1], x.shape[1])
        scores, low = q @ k.mT / q.shape[-1] ** 0.5, float("-inf")
        return {}
"""
MASKED = "scores.masked_fill(ones.triu(1) == 1, low).softmax({}) @ v"


def status_of(folder: Path, computed: str) -> str:
    spec = spec_of(found(folder, LAYER.format(computed), "Layer"))
    (outcome,) = attnbench.check(
        spec, profile="quick", invariants=["later_tokens_are_invisible"]
    ).outcomes
    return outcome.status


@pytest.mark.parametrize(
    "wrong",
    [
        MASKED.format(-2),
        MASKED.format(-1).replace("triu(1)", "triu(2)"),
        "scores.softmax(-1) * ones.tril() @ v",
        "nn.functional.scaled_dot_product_attention("
        "*(t.reshape(len(x), 2, x.shape[1], -1) for t in (q, k, v)), is_causal=True"
        ").transpose(1, 2).reshape(x.shape)",
    ],
)
def test_what_asks_for_causality_and_is_not_causal_fails(tmp_path: Path, wrong: str) -> None:
    assert status_of(tmp_path, wrong) == "failed"


@pytest.mark.parametrize(
    "right",
    [
        MASKED.format(-1) + " + (scores.mT.masked_fill(ones.tril(-1) == 1, low).softmax(-1) @ v)",
        "scores.softmax(-1) @ v",
    ],
)
def test_what_looks_both_ways_is_not_accused(tmp_path: Path, right: str) -> None:
    assert status_of(tmp_path, right) == "skipped"
