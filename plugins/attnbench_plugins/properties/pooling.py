"""Invariants on pooling, for subjects whose output is weights times value."""

from __future__ import annotations

import math

import torch

from attnbench import Case, InvariantViolation, Subject
from attnbench.testing import (
    Baseline,
    adds_keys,
    agree_within,
    any_of,
    benign,
    declares,
    largest,
    needs,
    score_rounding,
    within,
)
from attnbench_plugins.properties import invariant

_NEAR = 4.0
"""Differences up to this multiple of the allowed one may be rounding of the scores in two calls."""


_pools = any_of(declares("pools_values"), adds_keys)


@invariant(cases=benign, regimes=("normal", "tiny"), law=True)
def pools_values(subject: Subject, case: Case) -> None:
    """The output is weights times value."""
    base = Baseline(subject, case)
    weights = needs(subject.weights(base.module, base.inputs)).double()
    value = base.inputs.value.double()
    # weights and output are rounded once each; narrower weights may be rounded before the product
    tolerance = 8 * subject.eps(base.inputs.query.dtype) * (weights.abs() @ value.abs())
    tiny = torch.finfo(base.inputs.query.dtype).smallest_normal * case.kv_len
    tolerance += tiny * (1 + float(value.abs().amax()))
    names = "output", "weights @ value"
    try:
        return agree_within(base.output, weights @ value, tolerance, *names)
    except InvariantViolation as violation:
        # the weights come from another call, which may add up its scores in another order
        allowed = (tolerance + near for near in base.rounding_near(violation, _NEAR))
        return within(base.output, weights @ value, allowed, *names)


@invariant(cases=benign, applies=_pools)
def output_is_linear_in_values(subject: Subject, case: Case) -> None:
    """The output for a sum of values is the sum of their outputs."""
    base = Baseline(subject, case)
    first = base.inputs.value
    second = first.flip(-2) + first.roll(1, -1) / 2
    parts = [base.output.double(), base.run(base.inputs.replace(value=second)).double()]
    got = base.run(base.inputs.replace(value=2 * first + second)).double()
    # the outputs are sums of the values, and larger where weights sum to more than 1
    tolerance = 16 * subject.eps(first.dtype) * largest(first, second, *parts)
    agree_within(
        got,
        2 * parts[0] + parts[1],
        tolerance,
        "output(2 * value + other)",
        "2 * output(value) + output(other)",
    )


@invariant(cases=benign, applies=_pools)
def output_lies_within_values(subject: Subject, case: Case) -> None:
    """The output lies between the least and the largest value of the keys left."""
    base = Baseline(subject, case)
    value = base.inputs.value.double().unsqueeze(-3)
    hidden = ~base.allowed.unsqueeze(-1)
    low = value.masked_fill(hidden, math.inf).amin(-2)
    high = value.masked_fill(hidden, -math.inf).amax(-2)
    got = base.output.detach().double()
    size = value.abs().amax().clamp_min(torch.finfo(torch.float32).tiny)
    slack = 8 * subject.eps(base.inputs.query.dtype) + score_rounding(base.inputs)
    nearest = torch.minimum(torch.maximum(got, low), high)
    why = "no value of a key that is left lies beyond"
    agree_within(got, nearest, slack * float(size), "output", None, why=why)
