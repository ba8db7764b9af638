"""Specs of layers and caches: what they hold, and what is refused with which words."""

from __future__ import annotations

import pytest
from attnbench_zoo.right.layers import ENCODING, GROWING, STATIC
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec, SpecError
from attnbench.subject.lookup import resolve


class Same(nn.Module):
    def __init__(self, size: int, bias: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size, bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden)


def spec(**changes: object) -> LayerSpec:
    return LayerSpec(**{"name": "same", "make": Same, **changes})


def test_every_field_but_name_and_make_has_a_default() -> None:
    one = spec()
    assert (one.causal, one.accepts, one.cache, one.window) == (False, (), None, None)
    assert (one.laws, dict(one.exempt), dict(one.conventions), one.same_as) == ((), {}, {}, None)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"accepts": ("mask",)}, "accepts names 'mask'"),
        ({"causal": "yes"}, "causal should be True or False, not 'yes'"),
        ({"window": 0}, "window should be a number of positions, (before, after) or None, not 0"),
        ({"cache": object}, "cache should be a CacheSpec or None"),
        ({"cache": CacheSpec(new=Same)}, "write accepts=('cache',)"),
        ({"conventions": {"causal": "square"}}, "'causal' is no convention of a layer"),
        ({"name": "1"}, "a name is a letter"),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(SpecError) as caught:
        spec(**changes)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"new": None}, "new should be callable, not None"),
        ({"select": 1}, "select should be callable, not 1"),
        ({"capacity": 0}, "capacity should be a positive number of slots or None, not 0"),
        ({"capacity": True}, "capacity should be a positive number"),
    ],
)
def test_a_cache_of_the_wrong_kind_is_refused(changes: dict[str, object], told: str) -> None:
    with pytest.raises(SpecError) as caught:
        CacheSpec(**{"new": Same, **changes})
    assert told in str(caught.value)


def test_a_layer_is_made_with_one_size_and_its_own_options() -> None:
    (subject,) = resolve(spec())
    assert subject.kind == "layer"
    assert subject.make(4).linear.bias is None
    with pytest.raises(attnbench.ShapeError, match="one size by position, size; got"):
        spec().make(4, 4)
    with pytest.raises(attnbench.OptionError, match="no option 'bia'"):
        spec().make(4, bia=True)


def test_a_case_of_a_layer_is_one_batch_of_one_length_and_one_size() -> None:
    (subject,) = resolve(STATIC)
    case = subject.legal(attnbench.Case((2, 3), 100, 7, 5, 6, 7, mask="causal", regime="huge"))
    assert (case.lead, case.q_len, case.kv_len) == ((2,), 24, 24)
    assert (case.query_size, case.key_size, case.value_size) == (8, 8, 8)
    assert (case.mask, case.regime) == ("none", "normal")


@pytest.mark.parametrize("mask", ["padding", "left_padding"])
def test_padding_is_one_run_at_its_side(mask: str) -> None:
    (subject,) = resolve(GROWING)
    for seed in range(20):
        case = subject.legal(attnbench.Case((3,), 5, 5, mask=mask, seed=seed))
        padding_mask = subject.inputs(case).padding_mask  # type: ignore[attr-defined]
        steps = padding_mask.int().diff(dim=1)
        assert bool((steps <= 0).all() if mask == "padding" else (steps >= 0).all())
        assert bool(padding_mask.any())


def test_what_a_layer_gives_at_padded_slots_is_not_its_output() -> None:
    (subject,) = resolve(ENCODING)
    module, inputs = subject.build(subject.legal(attnbench.Case((3,), 5, 5, mask="padding")))
    output = subject.output(module, inputs)
    assert not output[~inputs.padding_mask].any()  # type: ignore[attr-defined]
    assert bool(output[inputs.padding_mask].all())  # type: ignore[attr-defined]


def test_a_size_that_make_refuses_is_told_with_what_to_declare() -> None:
    def make(size: int) -> nn.Module:
        if size % 4:
            raise ValueError(f"{size} features are not divisible by 4 heads")
        return Same(size)

    report = attnbench.check(spec(make=make), profile="quick", invariants=["keeps_the_contract"])
    (outcome,) = report.outcomes
    assert outcome.status == "failed"
    assert "not divisible by 4 heads" in outcome.reason
    assert "sizes=lambda size: ..." in outcome.reason
