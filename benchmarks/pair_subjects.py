"""Scoring functions whose calls differ by some real work, for ``benchmarks/pairs.py``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import attnbench

STEPS = {"SAME": 18, "MORE_3": 31, "BASE_3": 30, "MORE_5": 19}
"""How often each computes its scores: MORE_5 once more than SAME, and MORE_3 once more than BASE_3.

The rest of the call is the same, so that the calls differ by some 4 % and 3 %.
"""


class Scores(nn.Module):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        found = query @ key.mT / 8
        for _ in range(self.steps - 1):
            found = torch.maximum(found, query @ key.mT / 8)
        return found


def _spec(steps: int) -> attnbench.ScoringSpec:
    return attnbench.ScoringSpec(name=f"steps_{steps}", make=lambda q, k: Scores(steps))


SAME, MORE_3, BASE_3, MORE_5 = (_spec(steps) for steps in STEPS.values())
