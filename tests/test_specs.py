import copy
import dataclasses
import pickle
from typing import Any

import pytest
from torch import nn

import attnbench
from attnbench.errors import OptionError, ShapeError, SpecError
from attnbench.specs import Sizes


def scoring(**changes: Any) -> Any:
    return attnbench.ScoringSpec(**{"name": "mine", "make": lambda q, k: nn.Identity(), **changes})


def test_specs_are_frozen_keyword_only_and_compared_by_identity() -> None:
    first, second = scoring(), scoring()
    assert first != second
    assert len({first, second}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.name = "other"
    with pytest.raises(TypeError):
        attnbench.ScoringSpec("mine", print)


def test_every_field_but_name_and_make_has_a_default() -> None:
    attnbench.ScoringSpec(name="a", make=print)
    attnbench.MechanismSpec(name="a", make=print)
    attnbench.KernelSpec(name="a", scoring="b", attend=print)
    attnbench.Invariant(name="a", check=print)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "two words"}, "a name is a letter"),
        ({"name": 3}, "a name is a letter"),
        ({"make": "make"}, "make should be callable, not 'make'"),
        ({"laws": "unit_variance"}, "laws should be a tuple of names"),
        ({"laws": (1,)}, "laws should be a tuple of names"),
        ({"dtypes": ("float31",)}, "Did you mean 'float32'"),
        ({"dtypes": ()}, "dtypes is empty"),
        ({"exempt": ["x"]}, "exempt should be a mapping .*, not"),
        ({"reference": 1}, "reference should be callable"),
        ({"sizes": 1}, "sizes should be callable"),
        ({"formula": 3}, "scoring 'mine': formula should be text, not 3"),
        ({"equal_sizes": "no"}, "equal_sizes should be True or False, not 'no'"),
        ({"variants": (1,)}, r"variants should be a tuple of mappings .*, not \(1,\)"),
        ({"variants": {"a": 1}}, r"variants should be a tuple of mappings .*, not \{'a': 1\}"),
        ({"variants": ({1: 2},)}, "variants should be a tuple of mappings"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_impossible_scoring_spec_is_an_error_that_names_the_field(
    changes: Any, message: Any
) -> None:
    with pytest.raises(SpecError, match=message):
        scoring(**changes)


@pytest.mark.parametrize("name", ["additive", "additive/factorised", "soft", "causal_attention"])
def test_a_spec_can_be_copied_deeply(name: str) -> None:
    spec = attnbench.get(name)
    copied: Any = copy.deepcopy(spec)
    assert copied is not spec
    assert dataclasses.replace(copied).exempt == spec.exempt
    assert getattr(copied, "variants", ()) == getattr(spec, "variants", ())


def test_fields_that_are_mappings_cannot_be_changed_but_hashed_and_pickled() -> None:
    exempt: Any = scoring(exempt={"a": "b"}).exempt
    with pytest.raises(TypeError):
        exempt["a"] = "c"
    assert pickle.loads(pickle.dumps(exempt)) == exempt == {"a": "b"}
    assert hash(exempt) == hash(scoring(exempt={"a": "b"}).exempt)


def test_mechanism_names_only_known_keywords() -> None:
    with pytest.raises(SpecError, match="Did you mean 'is_causal'"):
        attnbench.MechanismSpec(name="m", make=print, accepts=("causal",))


def test_replace_gives_a_spec_whose_modules_carry_the_new_name() -> None:
    spec = dataclasses.replace(scoring(), name="renamed")
    assert spec.make(1, 1).attnbench_origin.startswith("renamed@")


def test_make_checks_the_number_of_sizes_and_equal_sizes() -> None:
    with pytest.raises(ShapeError, match="made with 2 sizes by position"):
        scoring().make(4)
    with pytest.raises(ShapeError, match="got 4 and 5"):
        scoring(equal_sizes=True).make(4, 5)


def test_make_refuses_an_option_that_is_not_there_and_offers_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"no option 'hiden_size'. Did you mean 'hidden_size'"):
        attnbench.get("additive").make(4, 4, hiden_size=8)


def test_make_may_name_its_sizes_as_it_likes() -> None:
    assert scoring(make=lambda dim_a, dim_b=3, *, scale=1.0: nn.Identity()).make(2, 3, scale=2.0)


def test_sizes_can_be_replaced() -> None:
    sizes = Sizes((2,), 3, 4, 5, 6, 7)
    assert sizes.replace(kv_len=3) == Sizes((2,), 3, 3, 5, 6, 7)
