"""A name of an invariant that another one has absorbed stands for its heir."""

from torch import nn

from attnbench import ScoringSpec
from attnbench.checking.plan import select_invariants
from attnbench.specs.heirs import heir, heirs


def test_every_heir_is_an_invariant_and_no_old_name_is() -> None:
    names = {invariant.name for invariant in select_invariants(None)}
    assert set(heirs().values()) <= names
    assert names.isdisjoint(heirs())


def test_an_old_name_selects_its_heir_once() -> None:
    names = ["weights_are_not_negative", "weights_sum_to_one"]
    assert [one.name for one in select_invariants(names)] == ["weights_sum_to_one"]


def test_an_exemption_by_an_old_name_is_one_from_its_heir() -> None:
    spec = ScoringSpec(
        name="mine", make=lambda *_: nn.Identity(), exempt={"large_bias_hides": "so it is"}
    )
    assert spec.exempt == {heir("large_bias_hides"): "so it is"}
