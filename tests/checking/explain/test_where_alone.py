"""Where alone a failure shows is told by cases that differ in one thing, and by nothing else."""

from attnbench.cases.case import Case
from attnbench.checking.explain.where_alone import where_alone

FAILING = Case((2,), 3, 33, 8, 8, 8, dtype="float16", mask="boolean")


def test_a_dtype_and_a_mask_are_told_by_cases_beside() -> None:
    passed = [FAILING.replace(dtype=f"float{n}") for n in (32, 64)] + [FAILING.replace(mask="none")]
    told = "in float16, not float32 or float64; with the mask boolean, not none"
    assert where_alone(FAILING, [FAILING], passed) == told


def test_what_failed_otherwise_too_is_not_told() -> None:
    other = FAILING.replace(dtype="float32")
    assert where_alone(FAILING, [FAILING, other], [other.replace(seed=1)]) == ""


def test_a_number_of_keys_is_told_by_the_largest_that_holds() -> None:
    passed = [FAILING.replace(kv_len=size) for size in (1, 16, 32)]
    assert where_alone(FAILING, [FAILING], passed) == "with 33 keys, not with 32"
    smaller = FAILING.replace(kv_len=20)
    assert where_alone(FAILING, [FAILING, smaller], passed) == ""


def test_cases_that_differ_in_more_say_nothing() -> None:
    other = FAILING.replace(dtype="float32", mask="none")
    assert where_alone(FAILING, [FAILING], [other]) == ""
