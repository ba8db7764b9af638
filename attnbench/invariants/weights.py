"""Invariants on weights: they are a distribution over the keys that are left."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation
from attnbench.invariants.numerics import representable
from attnbench.invariants.toolkit.applicability import scores_positions
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import agree_within, holds, needs, reject
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.invariants.toolkit.derivations import (
    FREE_MASKS,
    HIDING_MASKS,
    benign,
    has_weights,
    score_rounding,
)
from attnbench.oracle.budget import Oracle
from attnbench.oracle.references import allowed_and_bias, widened
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs


def _weights(subject: Subject, module: nn.Module, inputs: Inputs, case: Case) -> Tensor:
    """The weights; rejects the case if they are not finite since the dtype holds no such scores."""
    weights = needs(subject.weights(module, inputs))
    if case.dtype == "float16" and not bool(weights.isfinite().all()):
        # whether a score that fits is finite is for finite_at_extremes to say
        representable(Oracle(subject, module, inputs), case, room=4.0)
    return weights


@invariant(masks=FREE_MASKS, applies=has_weights)
def weights_sum_to_one(subject: Subject, case: Case) -> None:
    """Weights are at least 0, and a row of them sums to 1, or to less if the subject adds keys of
    its own.
    """
    module, inputs = subject.build(case)
    weights = _weights(subject, module, inputs, case)
    total = weights.double().sum(-1)
    # each weight is rounded to half a unit of its own size, and the sizes sum to 1
    eps = subject.eps(inputs.query.dtype)
    tolerance = 4 * eps * max(1.0, case.kv_len**0.5) + score_rounding(inputs)
    most = torch.ones_like(total)
    if subject.conventions.extra_keys:  # what its own keys get is missing here
        most = torch.minimum(total, most).clamp_min(0.0)
    agree_within(total, most, tolerance, "weights.sum(-1)", None)
    holds(weights >= 0, "weights", weights, "at least 0")
    if subject.conventions.extra_keys and case.mask == "none" and case.regime == "normal":
        _share_follows_scores(subject, module, inputs)


def _share_follows_scores(subject: Subject, module: nn.Module, inputs: Inputs) -> None:
    """Raise if the subject's own keys get the same share whatever score all others have."""
    key = inputs.key[..., :1, :].expand_as(inputs.key)
    calls = [inputs.replace(query=inputs.query * factor, key=key) for factor in (1.0, -2.0)]
    one, other = (needs(subject.weights(module, call)).double().sum(-1) for call in calls)
    if bool((one < 0.99).any()) and torch.allclose(one, other, rtol=1e-5):
        raise InvariantViolation(
            quantity="weights.sum(-1) where all keys are equal",
            got=float(one.flatten()[0]),
            expected="another number once the query is -2 times as large",
        )


@invariant(masks=HIDING_MASKS, applies=has_weights)
def masked_weights_are_zero(subject: Subject, case: Case) -> None:
    """The weight of a key that a mask hides from a query is exactly 0."""
    module, inputs = subject.build(case)
    allowed = allowed_and_bias(inputs)[0].to(inputs.query.device)
    weights = _weights(subject, module, inputs, case)
    holds(
        allowed | (weights == 0),
        "weights",
        weights,
        "exactly 0: the mask hides that key from that query",
    )


@invariant(
    cases=benign,
    regimes=("tiny", "equal_keys", "zero_keys"),
    beyond=(
        *(Case((1,), 3, 150, dtype=d, regime="equal_keys") for d in ("float32", "bfloat16")),
        # a step over parts of the keys, which leave a rest
        *(
            Case((1,), 1, 131, dtype=d, regime="equal_keys").tried(key="last")
            for d in ("bfloat16", "float16")
        ),
    ),
    variants={"key": ("last", "first", "any")},
    applies=scores_positions,
)
def every_attendable_key_matters(subject: Subject, case: Case) -> None:
    """The value of each key that a query may attend to changes its output."""
    base = Baseline(subject, case)
    slots = {"last": case.kv_len - 1, "first": 0, "any": base.choose(case.kv_len)}
    slot = slots[case.variant("key", "last")]
    seen = base.allowed[..., slot]
    if not bool(seen.any()):
        reject("no query sees that key")
    value = base.inputs.value.clone()
    value[..., slot, :] += 1024.0
    scores = subject.scores(base.module, base.inputs)
    clean = base.output.detach().double()
    got = base.run(base.inputs.replace(value=value)).detach().double()
    change = (got - clean).abs().amax(-1)
    least = 4 * subject.eps(base.inputs.query.dtype) * float(clean.abs().amax())
    if scores is not None and bool(scores.isfinite().all()):  # a cosine may be small all the same
        bias = allowed_and_bias(base.inputs)[1].to(scores.device)
        share = (scores.detach().double() + bias).masked_fill(~base.allowed, -math.inf).softmax(-1)
        seen = seen & (1024 * share[..., slot].nan_to_num(0.0) > 4 * least)
    if bool((seen & (change <= least)).any()):
        seen = seen & ~_weighs_little(base, slot, 4 * least).to(seen.device)
    holds(
        ~seen | (change > least),
        f"after adding 1024 to value {slot}, the largest change of output",
        change,
        f"more than {least:.2g}: no mask hides key {slot} from that query, "
        "and all keys score about the same",
    )


def _weighs_little(base: Baseline, slot: int, least: float) -> Tensor:
    """``(*lead, L)``: where a key's weight in float64 is too small for a change to show.

    So it may be where weights depend on the order of keys. A key that is dropped weighs nothing
    in float64 either, so that not even a very large value shows there.
    """
    if "float64" not in base.subject.dtypes:
        return torch.zeros_like(base.allowed[..., slot])
    module, inputs = widened(base.module, base.inputs)
    clean = base.subject.output(module, inputs).detach()
    changes = []
    for size in (1024.0, 2.0**500):
        value = inputs.value.clone()
        value[..., slot, :] += size
        got = base.subject.output(module, inputs.replace(value=value)).detach()
        changes.append((got - clean).abs().amax(-1))
    shown = 1e-9 * float(clean.abs().amax())  # what is normalised later shows no more
    return (changes[0] <= least) & (changes[1] > shown)
