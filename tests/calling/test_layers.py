"""Modules on hidden states as people write them: the adapter finds how each is called."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, UsageError
from attnbench.adapters import layer
from attnbench.subject.lookup import resolve

EVEN = {"sizes": lambda size: max(2, size // 2 * 2)}


class Heads(nn.Module):
    """Causal attention of two heads, to be called in several ways."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(size, size) for _ in range(4))

    def split(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return tuple(m(hidden).unflatten(-1, (2, -1)).transpose(1, 2) for m in self.maps[:3])

    def pooled(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | float = 0.0) -> Tensor:
        past = k.shape[2] - q.shape[2]
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + bias
        later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(past + 1)
        low = torch.finfo(scores.dtype).min
        weights = scores.masked_fill(later, low).clamp_min(low).softmax(-1)
        output: Tensor = self.maps[3]((weights @ v).transpose(1, 2).flatten(2))
        return output


class Causal(Heads):
    """Always causal."""

    def forward(self, x: Tensor) -> Tensor:
        return self.pooled(*self.split(x))


class Additive(Heads):
    """An additive mask, and tuples of keys and values that come and go."""

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        layer_past: Any = None,
        use_cache: bool = False,
    ) -> Any:
        q, k, v = self.split(x)
        if layer_past is not None:
            k, v = torch.cat([layer_past[0], k], 2), torch.cat([layer_past[1], v], 2)
        output = self.pooled(q, k, v, 0.0 if attention_mask is None else attention_mask)
        return output, (k, v) if use_cache else None


class Ones(Heads):
    """A mask of 1 and 0."""

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        assert set(attention_mask.unique().tolist()) <= {0, 1}
        bias = (1.0 - attention_mask.to(x.dtype)) * torch.finfo(x.dtype).min
        return self.pooled(*self.split(x), bias[:, None, None])


class Inside(Heads):
    """The cache is in the module, and positions come as a number of tokens seen."""

    kept: Tensor | None

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.register_buffer("kept", None, persistent=False)
        self.seen: list[int] = []

    def forward(self, x: Tensor, start_pos: int, use_cache: bool = False) -> Tensor:
        q, k, v = self.split(x)
        if use_cache:
            self.seen.append(start_pos)
            self.kept = (
                torch.stack([k, v])
                if self.kept is None
                else torch.cat([self.kept, torch.stack([k, v])], 3)
            )
            k, v = self.kept
        return self.pooled(q, k, v)

    def reset(self) -> None:
        self.kept, self.seen = None, []

    def reorder(self, index: Tensor) -> None:
        self.kept = self.kept if self.kept is None else self.kept[:, index]

    def crop(self, length: int) -> None:
        self.kept = self.kept if self.kept is None else self.kept[..., :length, :]


INSIDE = CacheSpec(
    new=lambda module, batch_size: module.reset(),
    select=lambda module, index: module.reorder(index),
    crop=lambda module, length: module.crop(length),
    length=lambda module: 0 if module.kept is None else module.kept.shape[3],
)


class Box:
    """A cache that a call hands back; another one from it."""

    def __init__(self, parts: tuple[Tensor, ...] = (), wrong: bool = False) -> None:
        self.parts, self.wrong = parts, wrong


class HandsBack(Heads):
    """Gives ``(output, weights, cache)``; its cache is handed back, and not changed in place."""

    def forward(self, x: Tensor, cache: Box | None = None) -> Any:
        q, k, v = self.split(x)
        if cache is None:
            return self.pooled(q, k, v), None, None
        if cache.parts:
            k, v = torch.cat([cache.parts[0], k], 2), torch.cat([cache.parts[1], v], 2)
        return self.pooled(q, k, v), q @ k.mT, Box((k, v * 0 if cache.wrong else v), cache.wrong)


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


@torch.no_grad()
def test_a_corrupted_cache_that_is_handed_back_is_the_one_used_next() -> None:
    new = CacheSpec(new=lambda module, batch_size: Box(wrong=True))
    spec = layer(HandsBack, cache=new)
    module, hidden = spec.make(8), torch.randn(2, 6, 8)
    assert spec.cache is not None
    given = outputs(spec, spec.cache.new(module, 2), module, hidden)
    assert not torch.allclose(given, module(hidden), atol=1e-3)


@pytest.mark.parametrize("name", ["additive", "inside"])
@torch.no_grad()
def test_rows_crops_and_copies_of_a_cache_are_its_own(name: str) -> None:
    cache_spec, module, hidden = SPECS[name].cache, SPECS[name].make(8), torch.randn(2, 5, 8)
    assert cache_spec is not None
    cache, other = cache_spec.new(module, 2), cache_spec.new(module, 2)
    module(hidden[:, :4], cache=cache)
    twin = copy.deepcopy(cache)
    module(hidden[:, 4:], cache=twin)
    cache = cache_spec.select(cache, torch.tensor([1, 0, 1]))  # type: ignore[misc]
    cache = cache_spec.crop(cache, 2)  # type: ignore[misc]
    rows = hidden[[1, 0, 1]]
    torch.testing.assert_close(module(rows[:, 2:3], cache=cache), module(rows[:, :3])[:, 2:])
    torch.testing.assert_close(module(hidden, cache=other), module(hidden))


class Stacked(Heads):
    """Gives back keys and values in one tensor ``(2, B, ...)``."""

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        q, k, v = self.split(x)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        return self.pooled(q, k, v), torch.stack([k, v])


class Summed(Stacked):
    """Gives back what has no rows."""

    def forward(self, x: Tensor, cache: Tensor | None = None) -> tuple[Tensor, Tensor]:
        output, kept = super().forward(x)
        return output, kept.sum()


@torch.no_grad()
def test_rows_are_selected_where_they_lie_in_a_returned_cache() -> None:
    (subject,) = resolve(layer(Stacked, kept="returned", **EVEN))
    cache_spec: Any = subject.spec.cache
    module, hidden = subject.spec.make(8), torch.randn(2, 5, 8)
    cache = cache_spec.new(module, 2)
    module(hidden[:, :4], cache=cache)
    cache = cache_spec.select(cache, torch.tensor([1, 0, 1]))
    cache = cache_spec.crop(cache, 2)
    rows = hidden[[1, 0, 1]]
    torch.testing.assert_close(module(rows[:, 2:3], cache=cache), module(rows[:, :3])[:, 2:])


class NeedsItsMask(Heads):
    """An encoder whose mask of padding has no default."""

    def forward(self, src: Tensor, src_key_padding_mask: Tensor) -> Tensor:
        q, k, v = self.split(src)
        scores = (q @ k.mT).masked_fill(src_key_padding_mask[:, None, None], -1e4)
        output: Tensor = self.maps[3]((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return output


def test_a_mask_without_a_default_is_given_in_every_call() -> None:
    spec = layer(NeedsItsMask, **EVEN)
    names = ["keeps_the_contract", "padded_tokens_are_inert", "padded_item_equals_item_alone"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert report.ok, str(report)
    assert len(report.of("passed")) == len(names)


class Counted(Stacked):
    """Gives back a dict of keys, values and their number."""

    def forward(self, x: Tensor, cache: Any = None) -> Any:
        given = None if cache is None else torch.stack([cache["key"], cache["value"]])
        output, kept = super().forward(x, given)
        count = x.shape[1] + (cache["count"] if cache else 0)
        return output, {"key": kept[0], "value": kept[1], "count": count}


@torch.no_grad()
def test_a_number_in_a_returned_cache_stays_and_nothing_is_cropped() -> None:
    (subject,) = resolve(layer(Counted, kept="returned", **EVEN))
    cache_spec: Any = subject.spec.cache
    module, hidden = subject.spec.make(8), torch.randn(2, 5, 8)
    cache = cache_spec.new(module, 2)
    module(hidden[:, :4], cache=cache)
    cache = cache_spec.select(cache, torch.tensor([1, 0, 1]))
    rows = hidden[[1, 0, 1]]
    torch.testing.assert_close(module(rows[:, 4:], cache=cache), module(rows)[:, 4:])
    assert cache.value["count"] == 5
    assert cache_spec.crop is None


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


@torch.no_grad()
def test_layers_of_torch_are_found_out_from_their_signature() -> None:
    made = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    spec = layer(made)
    module, hidden = spec.make(8).eval(), torch.randn(2, 4, 8)
    real = torch.arange(4) < torch.tensor([[4], [2]])
    wanted = made.eval()(hidden, src_key_padding_mask=~real)
    torch.testing.assert_close(module(hidden, real), wanted)
    assert (spec.name, spec.accepts, spec.causal) == (
        "TransformerEncoderLayer",
        ("padding_mask",),
        False,
    )


def test_a_module_without_padding_or_cache_accepts_neither() -> None:
    assert layer(Causal, causal=True).accepts == ()


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


def test_a_make_that_asks_for_more_than_a_size_is_told_so() -> None:
    class Configured(Causal):
        def __init__(self, config: Any) -> None:
            super().__init__(config.width)

    report = attnbench.check(layer(Configured), profile="quick", invariants=["keeps_the_contract"])
    told = "make gets E, an int, and nothing else: give make=lambda size: ..."
    assert told in str(report)
    assert "legal" not in report.outcomes[0].reason


def test_a_layer_that_raises_has_failed_and_no_invariant_is_blamed() -> None:
    def raising(module: Any, inputs: Any) -> None:
        if inputs[0].dtype == torch.bfloat16:
            raise RuntimeError("expected scalar type Float but found BFloat16")

    def make(size: int) -> nn.Module:
        module = Causal(size)
        module.register_forward_pre_hook(raising)
        return module

    report = attnbench.check(
        layer(make, name="raising", mask=None, **EVEN),
        profile="quick",
        invariants=["gradient_modes_agree"],
    )
    (outcome,) = report.outcomes
    assert outcome.status == "failed"
    assert "raising raised on a legal input: RuntimeError: expected scalar" in outcome.reason


class Unmasked(Heads):
    """Causal, and without an argument for padding."""

    def forward(self, hidden: Tensor) -> Tensor:
        return self.pooled(*self.split(hidden))


def test_padding_is_skipped_for_a_function_whose_module_takes_no_mask() -> None:
    spec = layer(lambda size: Unmasked(size), name="unmasked", causal=True, **EVEN)
    names = ["padded_tokens_are_inert", "padded_item_equals_item_alone", "copies_agree"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    statuses = {outcome.invariant: outcome.status for outcome in report.outcomes}
    assert statuses.pop("copies_agree") == "passed", report
    assert set(statuses.values()) <= {"skipped", "inconclusive"}, report


def settled(spec: Any) -> Any:
    (subject,) = resolve(spec)
    return subject


class GivesBack(Additive):
    """With ``use_cache`` a tuple that ends with keys and values; ``wrong`` leaves them unused."""

    wrong = False

    def forward(
        self,
        x: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool = False,
    ) -> Any:
        past = None if self.wrong else past_key_values
        output, *rest = super().forward(x, attention_mask, past, use_cache)
        return (output, *rest) if use_cache else (output,)


class LeavesUnused(GivesBack):
    wrong = True


def test_a_cache_that_a_call_gives_back_is_found_by_trying() -> None:
    subject = settled(layer(GivesBack, form="additive", **EVEN))
    assert subject.spec.causal
    assert subject.accepts == ("padding_mask", "cache")
    assert subject.spec.cache.select is not None
    assert subject.spec.cache.crop is not None
    (line,) = subject.about
    assert "cache in past_key_values, given back with use_cache=True (found by trying)" in line


class Decodes(GivesBack):
    """Attends to a second sequence, whose keys and values it gives back beside its own."""

    def forward(
        self, x: Tensor, memory: Any = None, past_key_values: Any = None, use_cache: bool = False
    ) -> Any:
        own, cross = past_key_values or (None, None)
        cross = cross or (self.split(memory)[1:])
        output, own = super().forward(x, None, own, True)
        q, *_ = self.split(output)
        seen = (q @ cross[0].mT).softmax(-1) @ cross[1]
        output = output + self.maps[3](seen.transpose(1, 2).flatten(2))
        return (output, (own, cross)) if use_cache else (output,)


def test_a_cache_beside_a_second_sequence_is_found_by_trying() -> None:
    subject = settled(layer(lambda size: Decodes(size), source="memory", **EVEN))
    assert "cache in past_key_values, given back with use_cache=True" in subject.about[0]
    assert subject.accepts == ("cache", "source")
    names = ["calls_may_be_cut_anywhere", "source_is_that_of_the_item"]
    report = attnbench.check(subject.spec, profile="quick", invariants=names)
    assert {o.status for o in report.outcomes} == {"passed"}, str(report)
    with pytest.raises(UsageError, match="'past_key_values', but raises when it is asked for one"):
        settled(layer(Decodes, **EVEN))


def test_a_cache_that_is_given_back_and_ignored_is_accused() -> None:
    spec = layer(LeavesUnused, form="additive", **EVEN)
    names = ["calls_may_be_cut_anywhere"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert [o.status for o in report.outcomes] == ["failed"], str(report)


def test_whether_a_layer_is_causal_is_found_by_trying() -> None:
    subject = settled(layer(Causal, **EVEN))
    assert subject.spec.causal
    assert subject.about == ("Causal: causal (found by trying)",)
    other = settled(layer(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)))
    assert not other.spec.causal
    assert "not causal (found by trying)" in other.about[-1]
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


class Preallocated(Heads):
    """Keys and values are written into buffers for so many rows, as in Llama's own code."""

    def __init__(self, size: int, rows: int = 6, slots: int = 40) -> None:
        super().__init__(size)
        self.keys, self.values = torch.zeros(2, rows, 2, slots, size // 2)

    def forward(self, x: Tensor, start_pos: int = 0) -> Tensor:
        (batch, length), (q, k, v) = x.shape[:2], self.split(x)
        self.keys, self.values = self.keys.to(x).clone(), self.values.to(x).clone()
        self.keys[:batch, :, start_pos : start_pos + length] = k
        self.values[:batch, :, start_pos : start_pos + length] = v
        whole = (t[:batch, :, : start_pos + length] for t in (self.keys, self.values))
        return self.pooled(q, *whole)


class SquareMask(Heads):
    """A mask for so many tokens, as in minGPT."""

    def __init__(self, size: int, room: int = 9) -> None:
        super().__init__(size)
        self.register_buffer("later", torch.ones(room, room).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        low = torch.finfo(x.dtype).min
        return self.pooled(*self.split(x), self.later[:length, :length].to(x) * low)


ROOM = (
    "keeps_the_contract",
    "layer_calls_leave_no_trace",
    "autocast_agrees",
    "outputs_depend_on_their_token",
    "calls_may_be_cut_anywhere",
)


def test_buffers_of_a_fixed_size_are_limits_and_no_failures() -> None:
    for make, kept, told in (
        (Preallocated, "module", "more than 6 rows or 40 tokens, which raise"),
        (SquareMask, "argument", "more than 9 tokens, which raise"),
    ):
        report = attnbench.check(layer(make, kept=kept, **EVEN), profile="quick", invariants=ROOM)
        assert report.ok, str(report)
        assert f"Not looked at, {make.__name__}: calls with {told}" in str(report)


def test_a_layer_that_raises_for_few_rows_or_tokens_has_no_limits() -> None:
    for room in (3, 64):
        (subject,) = resolve(layer(lambda size, room=room: SquareMask(size, room), **EVEN))
        assert not subject.limited
    (subject,) = resolve(layer(lambda size: SquareMask(size, 4), **EVEN))
    assert "more than 4 tokens, which raise" in subject.limited


class Hidden(nn.Module):
    """Self-attention of two heads that hides padded keys with minus infinity."""

    merges = True

    def __init__(self, size: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        heads = (
            part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(hidden).chunk(3, -1)
        )
        query, key, value = heads
        scores = query @ key.mT
        if padding_mask is not None:
            scores = scores.masked_fill(~padding_mask[:, None, None], -torch.inf)
        output = scores.softmax(-1) @ value
        if self.merges:
            output = output.transpose(1, 2)
        return self.out(output.reshape(hidden.shape))


class NotTransposed(Hidden):
    merges = False


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


class MaskOfAnother(Hidden):
    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        other = None if padding_mask is None else padding_mask.roll(1, 0)
        return super().forward(hidden, other)


class LastInABatch(Hidden):
    """In a batch of several the mask hides the last token alone."""

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        if padding_mask is not None and len(hidden) > 1:
            last = torch.arange(hidden.shape[1]) == hidden.shape[1] - 1
            padding_mask = padding_mask | ~last
        return super().forward(hidden, padding_mask)


class OverQueries(Hidden):
    """The mask lies over the queries: where one is padded, all keys are alike."""

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        output = super().forward(hidden)
        if padding_mask is None:
            return output
        return torch.where(padding_mask[..., None], output, output.mean(1, keepdim=True))


class OneTooMany(Hidden):
    """The first padded key is seen; where it is the only one, the mask hides nothing."""

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        if padding_mask is not None:
            first = padding_mask.cumprod(1).sum(1, keepdim=True)
            padding_mask = padding_mask | (torch.arange(hidden.shape[1]) == first)
        return super().forward(hidden, padding_mask)


class WithoutMask(Hidden):
    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return super().forward(hidden)


@pytest.mark.parametrize(
    "make", [OverQueries, OneTooMany, WithoutMask, NotTransposed, MaskOfAnother, LastInABatch]
)
def test_padding_that_reaches_real_tokens_is_found(make: type[nn.Module]) -> None:
    spec = layer(make, sizes=evened, conventions={"empty_rows": "nan"})
    assert not attnbench.check(spec, profile="quick", invariants=PADDING[:1]).ok


class LowestOfFloat32(Hidden):
    """It hides keys with a number that float16 does not have."""

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        if padding_mask is not None:
            hidden = hidden.masked_fill(~padding_mask.any(1)[:, None, None], -1e9) * 1.0
        return super().forward(hidden, padding_mask)


def test_a_layer_is_not_tried_in_dtypes_in_which_its_calls_raise() -> None:
    spec = layer(LowestOfFloat32, sizes=evened)
    report = attnbench.check(spec, profile="quick", invariants=["half_types_agree", *PADDING])
    assert report.ok, str(report)
    assert "not tried in float16, where it raises RuntimeError: value cannot be" in str(report)
    assert any(gap.what == "not tried in float16" for gap in report.coverage)
    asked = attnbench.check(replace(spec, dtypes=("float16",)), invariants=PADDING[:1])
    assert asked.outcomes[0].failure is not None


class HeldForInference(Preallocated):
    """Without a position, it is trained and holds nothing; with one, it has no gradients."""

    def forward(self, x: Tensor, start_pos: int | None = None) -> Tensor:
        with torch.set_grad_enabled(torch.is_grad_enabled() and start_pos is None):
            return super().forward(x, start_pos or 0)


def test_a_call_without_a_cache_leaves_out_a_position_that_has_a_default() -> None:
    spec = layer(HeldForInference, kept="module", **EVEN)
    names = ["gradients_are_right", "cached_gradients_are_right_or_stopped"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert [outcome.status for outcome in report.outcomes] == ["passed"] * 2, str(report)
