"""Invariants on floating masks: what they hold is added to the scores, by its size and sign."""

from __future__ import annotations

import math

import torch

from attnbench import Case, Subject
from attnbench.testing import (
    Baseline,
    adds_keys,
    agree_within,
    any_of,
    benign,
    declares,
    hand_picked,
    hides_by_a_number,
    knows_positions,
    largest,
    needs,
    not_exempt,
    select_keys,
    supports,
    ties,
    with_mask,
)
from attnbench_plugins.properties import invariant

_LOWS = (2.0**15, 2.0**33)
"""So much taken from the scores of all keys changes none of their weights."""


@invariant(
    masks=("none",),
    regimes=("normal", "tiny"),
    dtypes=("float32", "float64"),
    min_kv_len=2,
    max_len=33,
    beyond=(Case((1,), 2, 300, dtype="float64"),),
    applies=declares("pools_values", ": what it hands back may be means over heads"),
)
def bias_is_added_to_scores(subject: Subject, case: Case) -> None:
    """A floating mask b multiplies the weights by exp(b), before they are normalised."""
    module, inputs = subject.build(case)
    weights = needs(subject.weights(module, inputs)).double()
    shape = (*inputs.query.shape[:-1], inputs.key.shape[-2])
    generator = torch.Generator().manual_seed(~case.seed % 2**32)
    bias = torch.randn(shape, generator=generator, dtype=torch.float64)
    bias = bias.to(device=case.device, dtype=inputs.query.dtype)
    got = needs(subject.weights(module, inputs.replace(attn_mask=bias))).double()
    factor = bias.double().exp()
    expected = weights * factor
    total = got.sum(-1, keepdim=True)
    expected = expected * total / expected.sum(-1, keepdim=True).clamp_min(1e-300)
    tolerance = 64 * subject.eps(inputs.query.dtype) * (1 + factor.amax(-1, keepdim=True))
    agree_within(
        got,
        expected,
        tolerance,
        "with a random floating mask, weights",
        "the weights without it, times the exponential of the mask and normalised again,",
    )


_CONSTANT_CASES = (
    Case((2, 3), 4, 6, 8, 6, 5, dtype="float64", mask="bias"),
    Case((2,), 3, 5, dtype="float64", mask="bias", seed=1),
    Case((), 1, 7, dtype="float64", mask="bias", seed=2),
    Case((2,), 4, 6, dtype="float64", mask="causal", seed=3),
)


@invariant(
    cases=hand_picked(*_CONSTANT_CASES),
    applies=any_of(
        not_exempt("bias_is_added_to_scores"), supports("float64"), adds_keys, hides_by_a_number
    ),
)
def bias_of_all_keys_hides_none(subject: Subject, case: Case) -> None:
    """A large negative constant on all keys changes nothing: no finite bias is -inf."""
    base = Baseline(subject, case)
    bias = base.inputs.attn_mask
    if bias is None:  # the future stays hidden, however low what is not hidden lies
        bias = torch.zeros(base.allowed.shape, dtype=torch.float64, device=case.device)
    size = max(1.0, largest(base.inputs.value))
    for low in _LOWS:
        agree_within(
            base.run(base.inputs.replace(attn_mask=bias - low)),
            base.output,
            # the sum of a score and a constant is rounded to the spacing of the constant
            8 * subject.eps(bias.dtype) * low * size,
            f"with {low:g} taken from the scores of all keys, output",
            "the mask as it is",
        )


@invariant(
    cases=benign,
    masks=("none", "boolean", "floating", "padding"),
    regimes=("normal",),
    dtypes=("float32",),
    variants={"times": (2, 3)},
    applies=any_of(
        not_exempt("bias_is_added_to_scores", "keys_permute_freely"),
        supports("float32"),
        ties("kv_len"),
        knows_positions,
    ),
)
def key_given_again_equals_bias_of_log_2(subject: Subject, case: Case) -> None:
    """A key given n times weighs as much as one with log n added to its score."""
    base = Baseline(subject, case)
    slot, times = base.choose(case.kv_len), case.variant("times", 2)
    slots = torch.cat([torch.arange(case.kv_len), torch.full((times - 1,), slot)])
    added = torch.zeros(base.allowed.shape, dtype=base.inputs.query.dtype, device=case.device)
    added[..., slot] = math.log(times)
    mask = base.inputs.attn_mask
    if mask is not None and mask.is_floating_point():
        added = added + mask
    got = base.run(with_mask(base.inputs, added.masked_fill(~base.allowed, -math.inf)))
    base.on(select_keys(base.inputs, slots)).expect(
        got,
        f"with log {times} added to the scores of key {slot}, output",
        f"the call that is given that key and its value {times} times",
    )
