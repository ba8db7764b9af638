"""Invariants on dropout and the weights beside it; averages are in dropout_statistics."""

from __future__ import annotations

import torch

from attnbench import Case, InvariantViolation, Subject
from attnbench.testing import (
    Baseline,
    SameDraws,
    accepts,
    agree_within,
    any_of,
    compare_slopes,
    hand_picked,
    has_gradients,
    has_slopes,
    holds,
    leaves_of,
    needs,
    ordinary,
    reject,
    same_gradients,
)
from attnbench_plugins.properties import invariant

_WEIGHT_CASES = (
    Case((2, 3), 4, 6, 8, 6, 5, mask="boolean"),
    Case((2,), 3, 5, mask="none", seed=1),
    Case((2,), 3, 5, mask="causal", seed=2),
    Case((1,), 40, 40, mask="floating", seed=3),
)

_SLOPE_CASES = (
    Case((2, 3), 4, 6, 8, 6, 5, dtype="float64", mask="bias"),
    Case((2,), 3, 5, dtype="float64", mask="causal", seed=1),
    Case((2,), 3, 5, dtype="float64", mask="padding", seed=2),
    Case((1,), 70, 140, dtype="float64", seed=3),
)

_EVERY_CASES = (
    Case((2, 4), 4, 6, 8, 6, 5),
    Case((2,), 5, 5, mask="causal", seed=1),
    Case((2, 2), 3, 5, mask="floating", seed=2),
    Case((2,), 3, 5, mask="boolean", seed=3),
    Case((2, 2), 3, 5, mask="padding", seed=4),
    Case((2,), 3, 5, mask="lengths_2d", seed=5),
    Case((2, 2), 3, 5, mask="causal_padding", seed=6),
    Case((4,), 1, 9, seed=7),
    Case((), 3, 5, seed=8),
    Case((2, 2), 3, 5, dtype="bfloat16", seed=9),
    Case((2,), 3, 5, dtype="float16", seed=10),
    Case((2,), 3, 5, dtype="float64", seed=11),
    Case((1,), 3, 150, seed=12),
    Case((1,), 150, 3, seed=13),
    Case((1,), 140, 140, mask="causal", seed=14),
)


takes_dropout = accepts("dropout_p")
_gives_weights = accepts("return_weights", "hands back no weights")


@invariant(cases=ordinary, applies=takes_dropout)
def no_dropout_in_evaluation(subject: Subject, case: Case) -> None:
    """Dropout is active in training only."""
    base = Baseline(subject, case)
    for share in (0.5, 0.9):
        got = base.run(base.inputs.replace(dropout_p=share))
        base.expect(
            got, f"in evaluation mode, with dropout_p={share}, output", "the call with dropout_p=0"
        )


@invariant(cases=ordinary, applies=any_of(_gives_weights, takes_dropout))
def weights_are_those_before_dropout(subject: Subject, case: Case) -> None:
    """The weights handed back are those before dropout."""
    base = SameDraws(subject, case)  # of what is inside the scores, too
    expected, got = (
        needs(subject.weights(base.seeded(), base.inputs.replace(dropout_p=share)))
        for share in (0.0, 0.5)
    )
    tolerance = 16 * subject.eps(got.dtype)
    what = "in training mode, with dropout_p=0.5, weights handed back"
    agree_within(got, expected, tolerance, what, "the call with dropout_p=0")


@invariant(cases=hand_picked(*_WEIGHT_CASES), applies=_gives_weights)
def asking_for_weights_changes_nothing(subject: Subject, case: Case) -> None:
    """Asking for the weights changes nothing about the output, nor about its dropout."""
    base = Baseline(subject, case)
    got, _ = subject.output_and_weights(base.module, base.inputs)
    base.expect(got, "with return_weights=True, output", "the call without")
    if has_gradients(subject, case):
        inputs, leaves = leaves_of(base.module, base.inputs)
        got, _ = subject.output_and_weights(base.module, inputs)
        expected, weight = base.run(inputs), base.other(base.output)
        change, other = "with return_weights=True", "the call without"
        same_gradients(got, expected, leaves, weight, change, other, eps=base.eps)
    if "dropout_p" not in subject.accepts:
        return
    base.module.train()
    plain = base.on(base.inputs).output
    dropped = base.inputs.replace(dropout_p=0.5)
    # each has fifteen weights or more: that all are kept in all calls does not happen by chance
    calls = [subject.output_and_weights(base.module, dropped)[0] for _ in range(8)]
    if all(torch.equal(output, plain) for output in calls):
        raise InvariantViolation(
            "in training mode with dropout_p=0.5 and return_weights=True, output = that without "
            f"dropout in each of {len(calls)} calls, but should differ: nothing is dropped"
        )


@invariant(cases=hand_picked(*_SLOPE_CASES), applies=any_of(takes_dropout, has_slopes))
def gradients_are_right_with_dropout(subject: Subject, case: Case) -> None:
    """Gradients are the slopes of the output with the very weights that were dropped."""
    plain = SameDraws(subject, case)
    base = plain.on(plain.inputs.replace(dropout_p=0.3))
    given, named = leaves_of(base.module, base.inputs)
    if given.attn_mask is not None and given.attn_mask.is_floating_point():
        named["attn_mask"] = given.attn_mask.detach().requires_grad_()
        given = given.replace(attn_mask=named["attn_mask"])
    compare_slopes(base, given, named, "in training mode with dropout_p=0.3, ")


@invariant(cases=hand_picked(*_EVERY_CASES), applies=takes_dropout)
def every_call_drops_weights(subject: Subject, case: Case) -> None:
    """In training, dropout acts whatever the mask, the sizes and the dtype are."""
    if case.kv_len < 2:
        reject("a state that sees only earlier ones sees none")
    base = Baseline(subject, case)
    base.module.train()
    has_groups = "enable_gqa" in subject.accepts and bool(case.lead) and case.lead[-1] % 2 == 0
    for grouped in (False, True)[: 1 + has_groups]:
        inputs, remark = base.inputs, ""
        if grouped:
            key, value = (t[..., : case.lead[-1] // 2, :, :] for t in (inputs.key, inputs.value))
            inputs = inputs.replace(key=key, value=value, enable_gqa=True)
            remark = ", enable_gqa=True"
        plain = base.run(inputs)
        given = inputs.replace(dropout_p=0.5)
        # each has some weights or more: that all are kept in all calls does not happen by chance
        calls = [base.run(given) for _ in range(8)]
        what = f"in training mode with dropout_p=0.5{remark}, output"
        if all(torch.equal(output, plain) for output in calls):
            raise InvariantViolation(
                f"{what} = that without dropout in each of {len(calls)} calls, but should differ: "
                "nothing is dropped"
            )
        output = calls[0]
        alone = (output == 0) & (output != 0).any(-1, keepdim=True)
        # so many numbers are nonzero by chance only where no unit cuts them off at 0
        if not case.is_narrow and plain.numel() >= _SOME and bool((plain != 0).all()):
            other = "nonzero, as without dropout and as the rest of its row: weights are dropped, "
            holds(~alone, what, output, f"{other}not what comes out")


_SOME = 64
