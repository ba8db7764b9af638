"""Which elements are wrong is said by their places, and how by one number where it is one."""

import pytest
import torch

from attnbench.checking.explain.region import region_of
from attnbench.errors import InvariantViolation

RIGHT = torch.arange(96.0).view(2, 3, 4, 4) + 1


def violation(got: torch.Tensor, quantity: str = "output") -> InvariantViolation:
    compared = {"got": got, "expected": RIGHT}
    return InvariantViolation(quantity=quantity, allowed=1e-6, compared=compared)


def test_places_are_named_along_each_axis_and_one_error_is_said_once() -> None:
    got = RIGHT.clone()
    got[:, 1, 2:] += 0.25
    told = "16 of 96 elements: head 1, queries 2 to 3, all by 0.25"
    assert region_of(violation(got)) == told


def test_one_factor_of_all_is_said() -> None:
    assert region_of(violation(2 * RIGHT)) == "all 96 elements, all 2 times what they should be"


def test_keys_of_weights_are_listed() -> None:
    got = RIGHT.clone()
    got[0, 0, 0, [0, 3]] = torch.nan
    told = "2 of 96 elements: item 0, head 0, query 0, keys 0 and 3, all NaN"
    assert region_of(violation(got, "weights")) == told


@pytest.mark.parametrize("error", [InvariantViolation("no numbers"), violation(RIGHT)])
def test_nothing_is_said_where_nothing_was_compared_or_is_wrong(error: InvariantViolation) -> None:
    assert region_of(error) == ""


def test_a_condition_has_places_too() -> None:
    fine = RIGHT > 4
    compared = {"condition": fine, "values": RIGHT}
    told = region_of(InvariantViolation(quantity="output", compared=compared))
    assert told == "4 of 96 elements: item 0, head 0, query 0"
