"""The invariant on scores far from zero: softmax is the same for scores that all move together."""

from __future__ import annotations

from collections.abc import Iterable

from attnbench.cases.case import Case
from attnbench.cases.case_strategies import listed
from attnbench.errors import InvariantViolation, RefusalError
from attnbench.invariants.toolkit.applicability import adds_keys, any_of, hides_by_a_number
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import agree_within
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.oracle.textbook import is_textbook
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_SHIFTS = (2.0**10, 2.0**14, -(2.0**14))
"""Times 1/√E these leave float32's exponential, and float64's, no number but 0, or infinity."""

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
    for shift in _SHIFTS:
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
    for number, case in enumerate(_CASES):
        dtype = dtypes[number % len(dtypes)] if dtypes else subject.dtypes[0]
        if subject.takes_mask(case.mask):
            yield subject.legal(case.replace(dtype=dtype, seed=number))
