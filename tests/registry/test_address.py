import keyword
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from attnbench.errors import AddressError, StyleError
from attnbench.registry.address import Address, parse_address, split_addresses
from attnbench.specs.conventions import parse_convention

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
    "a/x y.py": Address("*", source="a/x y.py"),
    "a/x.py as sdpa": Address("*", source="a/x.py", style="sdpa"),
    "f.py:A made A(C(n=E, k=2), 'x as y')": Address(
        "A", source="f.py", made="A(C(n=E, k=2), 'x as y')"
    ),
    "f.py:A made A(E) as layer with causal=always": Address(
        "A", source="f.py", style="layer", conventions={"causal": "always"}, made="A(E)"
    ),
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
        "*",
        "x.py(a=1)",
        "additive#one",
        "file.py:SPECS#",
    ],
)
def test_what_is_no_address_is_an_error_that_shows_the_forms(text: Any) -> None:
    with pytest.raises(AddressError, match=r"distribution:name"):
        parse_address(text)


TEXT = st.text(alphabet="ab1 '\"(),:/#.=\\\n[]{}²é")
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,5}", fullmatch=True).filter(
    lambda name: not name.endswith(".py")  # the path of a file, which lacks the attribute
)
KEYS = NAMES.filter(lambda name: name.isidentifier() and not keyword.iskeyword(name))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.tuples(inner, inner),
    max_leaves=3,
)
CONVENTIONS = st.fixed_dictionaries(
    {},
    optional={
        "empty_rows": st.sampled_from(["zeros", "nan"]),
        "masks": st.sampled_from([(), ("boolean",), ("boolean", "floating"), ("boolean", "keys")]),
        "mask_value": st.sampled_from([-math.inf, -1e9]),
        "internal_dtype": st.sampled_from([None, "float32"]),
        "gradients": st.booleans(),
        "extra_keys": st.integers(0, 3),
    },
)


@st.composite
def addresses(draw: st.DrawFn) -> Address:
    kind = draw(st.sampled_from(["bare", "distribution", "file"]))
    sources = {"bare": st.none(), "distribution": NAMES, "file": TEXT.map(lambda t: f"{t}.py")}
    return Address(
        draw(NAMES),
        draw(st.none() | NAMES),
        draw(sources[kind]),
        draw(st.dictionaries(KEYS, VALUES, max_size=3)),
        draw(st.none() | st.sampled_from(["sdpa", "flash"])),
        draw(CONVENTIONS),
        draw(st.just("") | NAMES) if kind == "file" else "",
    )


@settings(database=None, derandomize=True, max_examples=200, deadline=None)
@given(addresses())
@example(Address("S", source="d (1)/f.py", options={"a": 2}))
@example(Address("S", source="it's, (here) as x with empty_rows=nan.py"))
@example(Address("m", options={"a": "1", "b": "True", "c": ")", "d": "x, y=2", "e": " "}))
def test_what_an_address_prints_is_read_back(address: Address) -> None:
    again = parse_address(str(address))
    assert again == address
    assert repr(again.options) == repr(dict(sorted(address.options.items())))  # 1 is not True
    assert hash(again) == hash(address)


def test_options_are_written_sorted_and_without_needless_quotes() -> None:
    options = {"scoring": "additive(hidden_size=3)", "num_heads": 2, "text": "2"}
    text = str(Address("m", options=options))
    assert text == "m(num_heads=2, scoring=additive(hidden_size=3), text='2')"
    assert str(parse_address("'d (1)/f.py':S(a=2)")) == "d (1)/f.py:S(a=2)"


def test_one_grammar_reads_conventions_wherever_they_stand() -> None:
    words = parse_address("soft with masks=boolean+floating, empty_rows=nan")
    literal = parse_address("soft with masks=('boolean', 'floating'), empty_rows='nan'")
    convention = dict([parse_convention("masks=('boolean','floating')")])
    assert words == literal == Address("soft").called(None, {**convention, "empty_rows": "nan"})


def test_a_second_style_is_refused() -> None:
    with pytest.raises(StyleError, match=r"says 'as sdpa', but the style 'flash'"):
        parse_address("f.py:fn as sdpa").called("flash", {})


def test_addresses_are_split_at_commas_that_are_not_their_own() -> None:
    text = "soft with empty_rows=nan, hidden_slots=finite,m(a=1,b='x,(y'), 'a, b.py':S,it's/f.py:S"
    assert split_addresses(text) == [
        "soft with empty_rows=nan, hidden_slots=finite",
        "m(a=1,b='x,(y')",
        "'a, b.py':S",
        "it's/f.py:S",
    ]
