"""Modules on hidden states as people write them: the adapter finds how each is called."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, UsageError
from attnbench.adapters import layer
from attnbench.subject.lookup import resolve
from tests.layer_modules import (
    EVEN,
    INSIDE,
    Additive,
    Box,
    Causal,
    Counted,
    Decodes,
    GivesBack,
    HandsBack,
    HeldForInference,
    Hidden,
    Inside,
    LowestOfFloat32,
    NeedsItsMask,
    Ones,
    Preallocated,
    SoftmaxInFloat32,
    SquareMask,
    Stacked,
    Summed,
)

SPECS = {
    "additive": layer(Additive, form="additive", kept="returned", **EVEN),
    "inside": layer(Inside, kept="module", cache=INSIDE, **EVEN),
    "handed back": layer(HandsBack, cache=CacheSpec(new=lambda module, batch_size: Box()), **EVEN),
}


def outputs(spec: Any, cache: Any, module: nn.Module, hidden: Tensor) -> Tensor:
    parts = [module(hidden[:, a:b], cache=cache) for a, b in ((0, 3), (3, 4), (4, 6))]
    return torch.cat(parts, 1)


@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_a_cache_is_used_wherever_a_module_keeps_it(name: str) -> None:
    spec = SPECS[name]
    torch.manual_seed(0)
    module, hidden = spec.make(8), torch.randn(2, 6, 8)
    cache = spec.cache.new(module, 2)
    torch.testing.assert_close(outputs(spec, cache, module, hidden), module(hidden))
    assert spec.causal
    assert "cache" in spec.accepts


@pytest.mark.parametrize("name", ["additive", "inside"])
@torch.no_grad()
def test_rows_crops_and_copies_of_a_cache_are_its_own(name: str) -> None:
    cache_spec: Any = SPECS[name].cache
    module, hidden = SPECS[name].make(8), torch.randn(2, 5, 8)
    cache, other = cache_spec.new(module, 2), cache_spec.new(module, 2)
    module(hidden[:, :4], cache=cache)
    twin = copy.deepcopy(cache)
    module(hidden[:, 4:], cache=twin)
    cache = cache_spec.select(cache, torch.tensor([1, 0, 1]))
    cache = cache_spec.crop(cache, 2)
    rows = hidden[[1, 0, 1]]
    torch.testing.assert_close(module(rows[:, 2:3], cache=cache), module(rows[:, :3])[:, 2:])
    torch.testing.assert_close(module(hidden, cache=other), module(hidden))


def test_a_mask_without_a_default_is_given_in_every_call() -> None:
    spec = layer(NeedsItsMask, **EVEN)
    names = ["keeps_the_contract", "padded_tokens_are_inert", "padded_item_equals_item_alone"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert report.ok, str(report)
    assert len(report.of("passed")) == len(names)


@pytest.mark.parametrize(("make", "is_cropped"), [(Stacked, True), (Counted, False)])
@torch.no_grad()
def test_rows_of_a_returned_cache_are_selected_where_they_lie(make: Any, is_cropped: bool) -> None:
    cache_spec: Any = settled(layer(make, kept="returned", **EVEN)).spec.cache
    module, hidden = layer(make, kept="returned", **EVEN).make(8), torch.randn(2, 5, 8)
    cache = cache_spec.new(module, 2)
    module(hidden[:, :4], cache=cache)
    cache, rows = cache_spec.select(cache, torch.tensor([1, 0, 1])), hidden[[1, 0, 1]]
    assert (cache_spec.crop is not None) == is_cropped  # a number counts its slots
    cache = cache_spec.crop(cache, 4) if is_cropped else cache
    torch.testing.assert_close(module(rows[:, 4:], cache=cache), module(rows)[:, 4:])


def test_a_returned_cache_without_rows_is_not_selected_and_the_report_says_so() -> None:
    (subject,) = resolve(layer(Summed, kept="returned", **EVEN))
    assert subject.spec.cache is not None
    assert subject.spec.cache.select is None
    assert any("rows none are selected (found by trying)" in line for line in subject.about)


@torch.no_grad()
def test_a_cache_inside_is_put_in_and_taken_out_with_the_number_of_tokens_seen() -> None:
    module, hidden = SPECS["inside"].make(8), torch.randn(1, 6, 8)
    assert SPECS["inside"].cache is not None
    cache = SPECS["inside"].cache.new(module, 1)
    outputs(SPECS["inside"], cache, module, hidden)
    assert module.callee.kept is None
    assert SPECS["inside"].cache.length is not None
    assert SPECS["inside"].cache.length(cache) == 6
    state = cache.value[""]
    assert state["seen"] == [0, 3, 4]


@pytest.mark.parametrize("spec", [layer(Ones), layer(Additive, form="additive")])
@torch.no_grad()
def test_padding_comes_in_the_form_that_a_module_takes(spec: Any) -> None:
    module, hidden = spec.make(8), torch.randn(2, 5, 8)
    real = torch.arange(5) < torch.tensor([[5], [3]])
    changed = hidden.masked_fill(~real[..., None], 9.0)
    torch.testing.assert_close(module(hidden, real)[real], module(changed, real)[real])
    assert spec.accepts == ("padding_mask",)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"form": "triangle"}, "'triangle' is none of boolean, ones, padding, additive"),
        ({"kept": "drawer"}, "'drawer' is none of argument, returned, module"),
    ],
)
def test_an_unknown_form_or_place_is_refused(given: dict[str, str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        layer(Causal, **given)


def test_an_argument_that_is_not_there_is_told_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"no argument 'attention_masc'.*attention_mask"):
        layer(Additive, mask="attention_masc").make(8)
    with pytest.raises(UsageError, match="Causal takes none of cache, past_key_values"):
        layer(Causal, kept="returned").make(8)


def settled(spec: Any) -> Any:
    (subject,) = resolve(spec)
    return subject


def test_a_cache_that_a_call_gives_back_is_found_by_trying() -> None:
    subject = settled(layer(GivesBack, form="additive", **EVEN))
    assert subject.spec.causal
    assert subject.accepts == ("padding_mask", "cache")
    assert subject.spec.cache.select is not None
    assert subject.spec.cache.crop is not None
    (line,) = subject.about
    assert "cache in past_key_values, given back with use_cache=True (found by trying)" in line


def test_a_cache_beside_a_second_sequence_is_found_by_trying() -> None:
    subject = settled(layer(lambda size: Decodes(size), source="memory", **EVEN))
    assert "cache in past_key_values, given back with use_cache=True" in subject.about[0]
    assert subject.accepts == ("cache", "source")
    names = ["calls_may_be_cut_anywhere", "source_is_that_of_the_item"]
    report = attnbench.check(subject.spec, profile="quick", invariants=names)
    assert {o.status for o in report.outcomes} == {"passed"}, str(report)
    with pytest.raises(UsageError, match="'past_key_values', but raises when it is asked for one"):
        settled(layer(Decodes, **EVEN))


def test_whether_a_layer_is_causal_is_found_by_trying() -> None:
    subject = settled(layer(Causal, **EVEN))
    assert subject.spec.causal
    assert subject.about == ("Causal: causal (found by trying)",)
    other = settled(layer(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)))
    assert not other.spec.causal
    assert "not causal (found by trying)" in " ".join(other.about)
    assert not settled(layer(Causal, causal=False)).spec.causal

    class Dropping(Causal):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(super().forward(x), 0.5, training=True)

    (subject,) = resolve(layer(Dropping, **EVEN))
    assert subject.spec.causal
    report = attnbench.check(subject.spec, profile="quick", invariants=["keeps_the_contract"])
    assert not report.ok


class TakesOthers(Causal):
    def forward(self, x: Tensor, **_: Any) -> Tensor:
        return super().forward(x)


class KeepsInPlace(TakesOthers):
    def forward(self, x: Tensor, kv_cache: Any = None) -> Tensor:  # type: ignore[override]
        return super().forward(x)


class NowhereToGo(TakesOthers):
    def forward(self, x: Tensor, use_cache: bool = False) -> Tensor:  # type: ignore[override]
        return super().forward(x)


class OddlyMasked(TakesOthers):
    def forward(self, x: Tensor, pad_mask: Any = None) -> Tensor:  # type: ignore[override]
        return super().forward(x)


class Embedded(TakesOthers):
    def forward(self, x: Tensor, temb: float) -> Tensor:  # type: ignore[override]
        return super().forward(x * temb)


class OddlyPlaced(GivesBack):
    def forward(  # type: ignore[override]
        self, x: Tensor, past_key_values: Any = None, rotary_pos: Any = None
    ) -> Any:
        return super().forward(x, None, past_key_values, True)


@pytest.mark.parametrize(
    ("make", "told", "decided"),
    [
        (KeepsInPlace, "'kv_cache', but gives none back: give cache=", {"cache_name": None}),
        (NowhereToGo, "'use_cache', and no argument with a usual name", {"cache_name": None}),
        (OddlyMasked, "'pad_mask', which may say what is padding: give mask=", {"mask": None}),
        (OddlyPlaced, "'rotary_pos', which may be where the tokens", {"positions": None}),
        (Embedded, "'temb', and nothing says what that is", {"keywords": {"temb": 1.0}}),
    ],
)
def test_an_argument_that_nothing_decides_is_named_with_what_decides_it(
    make: Any, told: str, decided: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=told):
        settled(layer(make, **EVEN))
    assert settled(layer(make, **EVEN, **decided)).spec.causal


ROOM = (
    "keeps_the_contract",
    "layer_calls_leave_no_trace",
    "autocast_agrees",
    "outputs_depend_on_their_token",
    "calls_may_be_cut_anywhere",
)


def test_buffers_of_a_fixed_size_are_limits_and_no_failures() -> None:
    for make, kept, told in (
        (Preallocated, "module", "more than 6 rows: they raise "),
        (SquareMask, "argument", "more than 9 tokens: they raise "),
    ):
        report = attnbench.check(layer(make, kept=kept, **EVEN), profile="quick", invariants=ROOM)
        assert report.ok, str(report)
        assert f"Not looked at, {make.__name__}: calls with {told}" in str(report)


def test_a_layer_that_raises_for_few_rows_or_tokens_has_no_limits() -> None:
    for room in (3, 64):
        (subject,) = resolve(layer(lambda size, room=room: SquareMask(size, room), **EVEN))
        assert not subject.limited
    (subject,) = resolve(layer(lambda size: SquareMask(size, 4), **EVEN))
    assert "more than 4 tokens: they raise " in subject.limited


def evened(size: int) -> int:
    return max(2, size // 2 * 2)


PADDING = ["padded_tokens_are_inert", "padded_item_equals_item_alone"]


def test_items_without_a_real_token_are_nan_by_convention_where_calls_show_it() -> None:
    report = attnbench.check(layer(Hidden, sizes=evened), profile="quick", invariants=PADDING)
    assert report.ok, str(report)
    assert "conventions: empty_rows=nan" in str(report)
    assert any("items without a real token" in gap.what for gap in report.coverage)
    strict = layer(Hidden, sizes=evened, conventions={"empty_rows": "zeros"})
    found = attnbench.check(strict, profile="quick", invariants=PADDING[:1]).outcomes[0]
    assert found.status == "failed"


def test_a_layer_is_not_tried_in_dtypes_in_which_its_calls_raise() -> None:
    spec = layer(LowestOfFloat32, sizes=evened)
    report = attnbench.check(spec, profile="quick", invariants=["half_types_agree", *PADDING])
    assert report.ok, str(report)
    assert "not tried in float16, where it raises RuntimeError: value cannot be" in str(report)
    assert any(gap.what == "not tried in float16" for gap in report.coverage)
    asked = attnbench.check(replace(spec, dtypes=("float16",)), invariants=PADDING[:1])
    assert asked.outcomes[0].failure is not None


def test_a_call_without_a_cache_leaves_out_a_position_that_has_a_default() -> None:
    spec = layer(HeldForInference, kept="module", **EVEN)
    names = ["gradients_are_right", "cached_gradients_are_right_or_stopped"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert [outcome.status for outcome in report.outcomes] == ["passed"] * 2, str(report)


def test_nan_for_an_item_of_padding_is_found_in_each_dtype() -> None:
    (subject,) = resolve(layer(SoftmaxInFloat32))
    assert subject.conventions.empty_rows == "nan"
    names = ["padded_tokens_are_inert", "gradients_are_right"]
    report = attnbench.check(subject.spec, profile="quick", invariants=names)
    assert report.ok, str(report)
