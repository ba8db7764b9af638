"""What a failed comparison says: values in digits that differ, and NaN that agrees with none."""

from __future__ import annotations

import math

import pytest
import torch

from attnbench.errors import InvariantViolation
from attnbench.invariants.toolkit.comparisons import agree_within


def said(got: float, expected: float, tolerance: float = 0.0) -> str:
    tensors = [torch.tensor([0.0, value], dtype=torch.float64) for value in (got, expected)]
    with pytest.raises(InvariantViolation) as caught:
        agree_within(*tensors, tolerance, "output", "the call before")
    return str(caught.value)


def test_a_difference_is_told_with_both_values_and_what_is_allowed() -> None:
    text = said(1.5, 1.0, 0.25)
    assert text == "output[1] = 1.5, but the call before has 1 (± 0.25; off by 2 times that)"


def test_values_that_six_digits_do_not_tell_apart_get_more() -> None:
    assert "= 1.0000000000000002, but the call before has 1 " in said(1 + 2**-52, 1.0)


@pytest.mark.parametrize(
    ("got", "tolerance", "told"),
    [
        (2.0, 0.0, "output[1] = 2, but the call before has 1 (they must be equal)"),
        (torch.inf, 0.5, "output[1] = inf, but the call before has 1 (± 0.5)"),
        (torch.nan, 0.5, "output[1] = nan, but the call before has 1 (± 0.5)"),
    ],
)
def test_no_error_is_told_as_a_multiple_of_nothing(got: float, tolerance: float, told: str) -> None:
    assert said(got, 1.0, tolerance) == told


def test_nan_agrees_with_nothing_and_says_so() -> None:
    text = said(math.nan, math.nan)
    assert text == "output[1] = nan, and the call before has nan too: NaN agrees with nothing"
    assert said(1.0, math.nan).startswith("output[1] = 1, but the call before has nan")
