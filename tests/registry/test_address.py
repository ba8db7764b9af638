import dataclasses
from typing import Any

import pytest

from attnbench.errors import AddressError
from attnbench.registry.address import Address, format_options, item_of, parse_address

READ = {
    "additive": Address("additive"),
    "additive/factorised": Address("additive", "factorised"),
    "my-scores:cosine": Address("cosine", source="my-scores"),
    "my-scores:cosine/fast": Address("cosine", "fast", "my-scores"),
    "additive(hidden_size=8)": Address("additive", options={"hidden_size": 8}),
    "additive/factorised(hidden_size=8)": Address(
        "additive", "factorised", options={"hidden_size": 8}
    ),
    "multi_head(scoring=additive, num_heads=2)": Address(
        "multi_head", options={"scoring": "additive", "num_heads": 2}
    ),
    "soft(scoring=additive(hidden_size=3))": Address(
        "soft", options={"scoring": "additive(hidden_size=3)"}
    ),
    "gaussian(per_feature=True)": Address("gaussian", options={"per_feature": True}),
    "a/b (c)/file.py:SPEC": Address("SPEC", source="a/b (c)/file.py"),
    "a (1)/file.py:SPEC(x='y')": Address("SPEC", source="a (1)/file.py", options={"x": "y"}),
    "package.module:SPECS": Address("SPECS", source="package.module"),
    "a#b/file.py:SPECS#one": Address("SPECS", source="a#b/file.py", item="one"),
    "file.py:SPECS#dot/fast(x=1)": Address(
        "SPECS", source="file.py", options={"x": 1}, item="dot/fast"
    ),
}


@pytest.mark.parametrize("text", READ)
def test_an_address_is_read(text: Any) -> None:
    assert parse_address(text) == READ[text]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a b",
        ":x",
        "x(",
        "x(1)",
        "x(a=)",
        "x(**y)",
        "x)",
        "a//b",
        "x(a=1)(b=2)",
        "a/x.py",
        "x.py(a=1)",
        "additive#one",
        "file.py:SPECS#",
    ],
)
def test_what_is_no_address_is_an_error_that_shows_the_forms(text: Any) -> None:
    with pytest.raises(AddressError, match=r"distribution:name"):
        parse_address(text)


def test_options_are_written_sorted_and_read_back() -> None:
    options = {"scoring": "additive(hidden_size=3)", "num_heads": 2}
    text = "m" + format_options(options)
    assert text == "m(num_heads=2, scoring=additive(hidden_size=3))"
    assert parse_address(text).options == options


@pytest.mark.parametrize(
    "text", ["a (1)/f.py:SPECS", "a (1)/f.py:SPECS(x=(1, 2))", "f.py:S as sdpa"]
)
def test_the_address_of_an_item_is_read_back(text: str) -> None:
    whole, one = parse_address(text), parse_address(item_of(text, "dot/fast"))
    assert one == dataclasses.replace(whole, item="dot/fast")
