"""Invariants on scores far from zero: softmax is the same for scores that all move together."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from attnbench import Case, Inputs, InvariantViolation, RefusalError, Subject
from attnbench.strategies import listed
from attnbench.testing import (
    Baseline,
    adds_keys,
    agree_within,
    any_of,
    differentiate,
    has_no_gradients,
    hides_by_a_number,
    is_textbook,
    not_exempt,
    stages_of,
)
from attnbench_plugins.properties import invariant

_SHIFTS = (2.0**10, 2.0**14, -(2.0**14))
"""Times 1/√E these leave float32's exponential, and float64's, no number but 0, or infinity."""

_FAR, _FINE = 2.0**16, 1e-12
"""Less this, scores lie below what running maxima wrongly begin with (not below -1e5, which right
code takes for none), and keep digits where the unit in the last place is at most the other number.
"""

_LEAST = 1e6
"""A number that stands for -inf above minus this may be above scores that lie so low."""

_CASES = (
    Case((2,), 3, 5),
    Case((2,), 4, 6, 8, 8, 8, mask="boolean"),
    Case((3,), 4, 9, mask="padding"),
    # blocks of keys that a row may not see come before, between and after those that it may
    Case((1,), 140, 300, mask="causal"),
    Case((1,), 130, 258, mask="window"),
    Case((1,), 6, 258, mask="boolean"),
)


def _shifted(inputs: Inputs, shift: float) -> Inputs:
    """The inputs with ``shift`` as the last feature of each query, and -1 as that of each key.

    The dot product of any query and key then changes by one and the same number.
    """
    query, key = inputs.query.clone(), inputs.key.clone()
    query[..., -1], key[..., -1] = shift, -1.0
    return inputs.replace(query=query, key=key)


def _is_no_dot_product(subject: Subject) -> str | None:
    known = "bilinear" in subject.laws if subject.kind == "kernel" else is_textbook(subject)
    return None if known else "its scores are not known to be dot products"


def _hides_far_below(subject: Subject) -> str | None:
    return hides_by_a_number(subject) if subject.conventions.mask_value > -_LEAST else None


@invariant(
    kinds=("kernel", "mechanism"),
    cases=lambda subject: listed(*_cases_of(subject), enough=1),
    applies=any_of(adds_keys, _hides_far_below, _is_no_dot_product),
)
def common_shift_of_scores_changes_nothing(subject: Subject, case: Case) -> None:
    """Where a feature moves all dot products of a query together, however far below or above zero,
    the output stays the same.
    """
    base = Baseline(subject, case)
    base = base.on(_shifted(base.inputs, 0.0))
    try:
        _compare(base, 1.0)
    except InvariantViolation:
        raise RefusalError("no feature moves all of its scores together") from None
    far = _FAR * case.query_size**0.5
    for shift in (*_SHIFTS, far) if base.eps < _FINE else _SHIFTS:
        _compare(base, shift)


def _compare(base: Baseline, shift: float) -> None:
    shifted = base.on(_shifted(base.inputs, shift))
    change = f"with {-shift:g} times the scale added to all scores by one feature, output"
    other = "the call with 0 in that feature"
    # a sum that holds the shift is rounded to the spacing of numbers of its size
    tolerance = 8 * base.eps * max(1.0, abs(shift)) * float(base.inputs.value.abs().max())
    agree_within(shifted.output, base.output, tolerance, change, other)


def _cases_of(subject: Subject) -> Iterable[Case]:
    dtypes = [name for name in ("float32", "float64") if name in subject.dtypes]
    for number, case in enumerate(case for case in _CASES if subject.takes_mask(case.mask)):
        dtype = dtypes[number % len(dtypes)] if dtypes else subject.dtypes[0]
        yield subject.legal(case.replace(dtype=dtype, seed=number))


_HALF_CASES = (
    Case((2, 3), 5, 5, 8, 8, 8),
    Case((1,), 37, 37, 24, 24, 24, mask="causal", seed=1),
)
_HALF_SHIFTS = {"bfloat16": 2.0**12, "float16": 2.0**10}
"""Products of two features; in each dtype the next number is farther than the scores differ."""

_UNITS = 8.0
"""Units by which each stage may round: weights, their gradients, and the output in these."""


def _half_types(subject: Subject) -> list[str]:
    return [name for name in _HALF_SHIFTS if name in subject.dtypes]


def _knows_no_half(subject: Subject) -> str | None:
    if subject.conventions.internal_dtype in _HALF_SHIFTS:
        return "it computes in a half type (convention internal_dtype)"
    return None if _half_types(subject) else "no half type is supported"


@invariant(
    kinds=("mechanism",),
    cases=lambda subject: listed(*_cases_in_half(subject), enough=1),
    applies=any_of(
        has_no_gradients,
        not_exempt("gradients_are_right"),
        _knows_no_half,
        adds_keys,
        _hides_far_below,
        _is_no_dot_product,
    ),
)
def gradients_are_as_accurate_as_the_output(subject: Subject, case: Case) -> None:
    """In half types, where all scores of a query lie far from zero, gradients lose no more to
    rounding than the output does.
    """
    if case.dtype not in _HALF_SHIFTS:
        raise RefusalError("no half type is tried")
    base = Baseline(subject, case)
    feature = _HALF_SHIFTS[case.dtype] ** 0.5
    query, key = base.inputs.query.clone(), base.inputs.key.clone()
    query[..., -1], key[..., -1] = feature, feature
    leaves = [t.detach().requires_grad_() for t in (query, key, base.inputs.value)]
    output = base.run(base.inputs.replace(**dict(zip(_LEAVES, leaves, strict=True))))
    wide = [t.detach().cpu().double().requires_grad_() for t in leaves]
    stages = stages_of(base.inputs.replace(**dict(zip(_LEAVES, wide, strict=True))))
    expected, sizes = stages.output, stages.weights.detach() @ wide[2].detach().abs()
    off = (output.detach().cpu().double() - expected.detach()).abs()
    if not bool((off <= _UNITS * base.eps * sizes).all()):
        raise RefusalError("its output loses as much where scores lie far from zero")
    weight = base.other(output)
    found = differentiate(output, leaves, weight)
    right = torch.autograd.grad(expected, wide, weight.cpu().double())
    for name, got, should, size in zip(
        _LEAVES, found, right, _sizes(stages.weights, wide, sizes, weight), strict=True
    ):
        what = f"in {case.dtype}, with all scores far above zero, the gradient by {name}"
        got = torch.zeros_like(should) if got is None else got.cpu().double()
        agree_within(got, should, _UNITS * base.eps * size, what, "the gradient in float64")


_LEAVES = ("query", "key", "value")


def _sizes(
    weights: Tensor, leaves: list[Tensor], output: Tensor, incoming: Tensor
) -> tuple[Tensor, ...]:
    """The sums of absolute values that make up each gradient, of which each term is rounded."""
    query, key, value = (leaf.detach().abs() for leaf in leaves)
    weights, incoming = weights.detach(), incoming.cpu().double().abs()
    slopes = incoming @ value.mT + (incoming * output).sum(-1, keepdim=True)
    scores = weights * slopes * query.shape[-1] ** -0.5
    return scores @ key, scores.mT @ query, weights.mT @ incoming


def _cases_in_half(subject: Subject) -> Iterable[Case]:
    for case in _HALF_CASES:
        if subject.takes_mask(case.mask):
            yield from (subject.legal(case.replace(dtype=name)) for name in _half_types(subject))
