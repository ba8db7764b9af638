"""The reference of ``local_predictive`` in Python floats."""

from __future__ import annotations

import math
from typing import Any

from attnbench_plugins._floats import Rows, attended, dot, matvec, pooled
from attnbench_plugins.scorings._scoring import pair_score

__all__ = ["predictive"]


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def predictive(module: Any, query: Rows, key: Rows, value: Rows, allowed: list[list[bool]]) -> Rows:
    """The rows of the output, by predicted position, window, softmax and Gaussian."""
    score = pair_score(module.scoring)
    weight, vector = module.position_proj.weight.tolist(), module.position_vector.tolist()
    output = []
    for q, may in zip(query, allowed, strict=True):
        slots = max((s + 1 for s, yes in enumerate(may) if yes), default=0)
        p = slots * _sigmoid(dot(vector, [math.tanh(x) for x in matvec(weight, q)]))
        near = [yes and abs(s - p) <= module.window for s, yes in enumerate(may)]
        soft = attended(score, [q], key, [near])[0]
        fall = (math.exp(-2 * ((s - p) / module.window) ** 2) for s in range(len(key)))
        output.append(pooled([w * f for w, f in zip(soft, fall, strict=True)], value))
    return output
