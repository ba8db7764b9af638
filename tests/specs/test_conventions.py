from typing import Any

import pytest
from torch import nn

import attnbench
from attnbench.errors import SpecError
from attnbench.specs.conventions import Conventions, format_conventions, parse_convention


def declared(**fields: Any) -> attnbench.MechanismSpec:
    return attnbench.MechanismSpec(name="own", make=lambda q, k, v: nn.Identity(), **fields)


def test_the_first_value_of_each_convention_is_its_default() -> None:
    assert Conventions() == Conventions(
        empty_rows="zeros",
        hidden_slots="any",
        masks=("boolean", "floating", "lengths"),
        mask_value=float("-inf"),
        internal_dtype=None,
        gradients=True,
        causal="bottom_right",
        positions="none",
        extra_keys=0,
        per_head=False,
    )


def test_a_spec_keeps_its_conventions_and_does_not_let_them_be_changed() -> None:
    given = {"masks": "keys", "mask_value": -1e9, "gradients": False}
    spec = declared(conventions=given)
    given.clear()
    assert dict(spec.conventions) == {
        "masks": ("boolean", "keys"),
        "mask_value": -1e9,
        "gradients": False,
    }
    with pytest.raises(TypeError):
        spec.conventions["masks"] = ()


@pytest.mark.parametrize(
    ("conventions", "message"),
    [
        ({"empty_row": "zeros"}, "'empty_row' is no convention. Did you mean 'empty_rows'?"),
        ({"empty_rows": "none"}, "empty_rows = 'none', but should be 'zeros' or 'mean'"),
        ({"masks": ("bool",)}, "masks = .*, but should be a tuple of 'boolean'"),
        ({"mask_value": 0}, "mask_value = 0, but should be '-inf', a negative number"),
        ({"internal_dtype": "int8"}, "internal_dtype = 'int8', but should be None"),
        ({"gradients": 0}, "gradients = 0, but should be True or False"),
        ({"extra_keys": True}, "extra_keys = True, but should be 0 or how many"),
        ({"extra_keys": -1}, "extra_keys = -1"),
        ({"per_head": "yes"}, "per_head = 'yes'"),
        (["empty_rows"], "conventions should map a key"),
    ],
)
def test_a_wrong_convention_is_an_error_that_says_what_it_should_be(
    conventions: Any, message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        declared(conventions=conventions)


@pytest.mark.parametrize("same_as", ["", 3])
def test_same_as_is_an_address(same_as: Any) -> None:
    with pytest.raises(SpecError, match="same_as should be the address"):
        declared(same_as=same_as)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("empty_rows=nan", "nan"),
        ("masks=boolean+keys", ("boolean", "keys")),
        ("masks=boolean, floating", ("boolean", "floating")),
        ("masks=none", ()),
        ("mask_value=-1e9", -1e9),
        ("mask_value=-inf", float("-inf")),
        ("mask_value=finite", -999_999.0),
        ("internal_dtype=None", None),
        ("extra_keys=2", 2),
        ("per_head=True", True),
    ],
)
def test_a_convention_is_read_as_it_is_written(text: str, value: Any) -> None:
    key, found = parse_convention(text)
    assert found == value
    assert parse_convention(format_conventions({key: found})) == (key, found)


@pytest.mark.parametrize(
    ("text", "message"),
    [("empty_rows", "write KEY=VALUE"), ("rows=nan", "Did you mean 'empty_rows'|is no convention")],
)
def test_a_convention_that_cannot_be_read_is_an_error(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_convention(text)
