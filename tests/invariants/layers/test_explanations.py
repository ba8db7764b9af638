"""What the message of a failing program tells of its cause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from attnbench_zoo.right.broken_layers import BROKEN, KILLERS
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec
from attnbench.cases.case import Case
from attnbench.invariants.caches.program import Step, steps
from attnbench.invariants.caches.seen_tokens import seen_tokens
from attnbench.invariants.caches.stage import FoundError, Stage
from attnbench.subject.layer import LayerSubject
from attnbench.subject.lookup import resolve

WINDOW = 4


class Decoder(nn.Module):
    """A causal layer with a window, padding and a cache, and with one mistake."""

    def __init__(self, size: int, mistake: str) -> None:
        super().__init__()
        self.qkv, self.mistake = nn.Linear(size, 3 * size), mistake

    def forward(
        self,
        hidden: Tensor,
        padding_mask: Tensor | None = None,
        cache: dict[str, Tensor] | None = None,
    ) -> Tensor:
        query, key, value = self.qkv(hidden).chunk(3, -1)
        past = 0 if cache is None else cache["key"].shape[1]
        if cache is not None:
            if self.mistake == "low_precision":
                key = key.to(torch.bfloat16).to(key.dtype)
            cache["key"] = key = torch.cat([cache["key"], key], 1)
            cache["value"] = value = torch.cat([cache["value"], value], 1)
        rows = torch.arange(past, past + hidden.shape[1])[:, None]
        columns = torch.arange(past + hidden.shape[1])
        if self.mistake == "top_left":
            rows = rows - past
        reach = WINDOW + (self.mistake == "window_too_wide" and past > 0)
        allowed = (columns <= rows) & (columns > rows - reach)
        if self.mistake == "no_window_in_steps" and past and len(rows) == 1:
            allowed = torch.ones_like(allowed)
        if padding_mask is not None and not (self.mistake == "padding_forgotten" and past):
            allowed = allowed & padding_mask[:, None]
            if self.mistake == "rows_mixed" and past:
                value = value.roll(1, 0)
        scores = query @ key.mT * (1.0 if self.mistake == "unscaled_in_calls" and past else 0.25)
        if self.mistake == "scaled_by_length":
            scores = scores * len(columns)
        weights = scores.masked_fill(~allowed, -1e9).softmax(-1)
        output: Tensor = weights @ value
        if self.mistake == "nan_in_calls" and past:
            return output * torch.nan
        return output + 1 if self.mistake == "shifted_in_calls" and past else output


def new(module: nn.Module, batch_size: int) -> dict[str, Tensor]:
    weight: Any = module.qkv.weight
    return {name: weight.new_zeros(batch_size, 0, weight.shape[1]) for name in ("key", "value")}


def selected(tensor: Tensor, index: Tensor, mistake: str) -> Tensor:
    """The rows of a tensor that is not selected, or not in order, or in which they are mixed."""
    if mistake == "value":
        return tensor
    if "in_order" in mistake:
        return tensor[index.sort().values]
    return tensor[index].lerp(tensor[index].roll(1, 0), 0.25)


def spec(mistake: str) -> LayerSpec:
    return LayerSpec(
        name="decoder",
        make=lambda size: Decoder(size, mistake),
        causal=True,
        window=WINDOW,
        laws=frozenset({"left_padding_is_inert"}),
        accepts=("padding_mask", "cache"),
        dtypes=("float32", "float64"),
        cache=CacheSpec(
            new=new,
            select=lambda cache, index: {
                name: selected(tensor, index, mistake) if name in mistake else tensor[index]
                for name, tensor in cache.items()
            },
            crop=lambda cache, length: {n: t[:, :length] for n, t in cache.items()},
            length=lambda cache: cache["key"].shape[1] * (1 + (mistake == "counted_twice")),
        ),
    )


def told(layer: LayerSpec, invariant: str) -> str:
    (found,) = attnbench.check(layer, profile="quick", invariants=[invariant]).outcomes
    assert found.status == "failed"
    return found.reason


CUT = "calls_may_be_cut_anywhere"
SEES = "depends on {}; in one call it depends on {}: what it sees is wrong"
BOTH = "token 1 depends on tokens 0 and 1 in both, and {} with equal tokens everywhere it is {}"


@pytest.mark.parametrize(
    ("mistake", "invariant", "line"),
    [
        ("top_left", CUT, "token 1 " + SEES.format("token 0", "tokens 0 and 1")),
        ("window_too_wide", CUT, "token 4 " + SEES.format("tokens 0 to 4", "tokens 1 to 4")),
        (
            "no_window_in_steps",
            CUT,
            "cut as 5 at once, 1 + 4, 3 + 2 or 3 + 1 + 2 it is right; as 1 + 1 + 1 + 1 + 1",
        ),
        (
            "padding_forgotten",
            "padded_rows_decode_as_alone",
            "(padding: 0); alone it depends on token 1: what it sees is wrong\n  it goes wrong",
        ),
        (
            "scaled_by_length",
            CUT,
            "in one call without a cache, outputs change with how many tokens follow\n  the first "
            "operation by which later tokens reach the outputs is ",
        ),
        ("top_left", CUT, ": rows = rows - past: 0 where one call has 1\n"),
        ("padding_forgotten", "padded_rows_decode_as_alone", "(columns > rows - reach); one call"),
        ("unscaled_in_calls", CUT, " 0.25): it is 4 times that of one call\n"),
        ("unscaled_in_calls", CUT, BOTH.format("", "right").replace("  ", " ")),
        ("shifted_in_calls", CUT, BOTH.format("even", "wrong")),
        (
            "value",
            "selected_rows_go_on_as_their_sequences",
            "select changes cache['key'] (2, 3, 8), and leaves cache['value'] (1, 3, 8) as it was",
        ),
        (
            "counted_twice",
            "cache_length_counts_slots",
            "a new cache says 2 after 1, 6 after 3, 4 after 1 + 1, 10 after 3 + 2",
        ),
    ],
)
def test_the_message_tells_what_a_wrong_output_depends_on(
    mistake: str, invariant: str, line: str
) -> None:
    assert line in told(spec(mistake), invariant)


@pytest.mark.parametrize(
    ("mistake", "invariant", "cause"),
    [
        ("top_left", CUT, "in a call behind others, positions or counts begin anew, and should"),
        ("scaled_by_length", CUT, "without a cache, outputs change with how many tokens follow"),
        (
            "value_in_order",
            "selected_rows_go_on_as_their_sequences",
            "selecting rows of the cache leaves a",
        ),
        (
            "key_value_in_order",
            "selected_rows_go_on_as_their_sequences",
            "selecting rows of the cache is not selecting the sequences",
        ),
    ],
)
def test_the_likely_cause_is_in_the_words_of_what_the_message_tells(
    mistake: str, invariant: str, cause: str
) -> None:
    (found,) = attnbench.check(spec(mistake), profile="quick", invariants=[invariant]).outcomes
    assert str(found.diagnosis).startswith(cause)


def test_a_row_that_reads_what_is_of_another_is_told() -> None:
    names = ["selected_rows_go_on_as_their_sequences"]
    (found,) = attnbench.check(spec("value_mixed"), profile="quick", invariants=names).outcomes
    assert "another row of the batch; in one call" in found.reason
    assert str(found.diagnosis).startswith("after a selection of rows, a row reads what belongs")


def test_a_padded_row_that_reads_what_is_of_another_is_told() -> None:
    names = ["padded_rows_decode_as_alone"]
    (found,) = attnbench.check(spec("rows_mixed"), profile="quick", invariants=names).outcomes
    assert found.failure is not None
    assert "another row of the batch" in found.reason
    assert "; alone it depends on" in found.reason
    assert found.failure.named == "row_of_another"


def test_what_is_not_finite_with_a_cache_is_told_as_that() -> None:
    names = ["cached_calls_keep_the_contract", CUT]
    report = attnbench.check(spec("nan_in_calls"), profile="quick", invariants=names)
    assert "decoder: calls with a cache give NaN or infinity for finite inputs" in str(report)


@pytest.mark.slow
@pytest.mark.long
def test_a_cropped_token_that_still_counts_is_named() -> None:
    layer = BROKEN["counter_only"]
    reason = told(layer, KILLERS["counter_only"])
    assert "token 0 depends on token 0 and a token that had been cropped" in reason


@pytest.mark.slow
@pytest.mark.long
def test_another_row_that_counts_is_named() -> None:
    reason = told(BROKEN["keys_only"], KILLERS["keys_only"])
    assert "and a token that is not of its sequence; in one call it depends on" in reason


def test_tokens_of_rows_that_a_selection_adds_are_seen() -> None:
    (subject,) = resolve(replace(spec("unscaled_in_calls"), name="selecting"))
    assert isinstance(subject, LayerSubject)
    stage = Stage(subject, Case((1,), 24, 24, 8, 8, 8))
    program = steps(1, 1, Step("select", rows=(0, 0)), 1)
    found = FoundError(program, "", place=(1, -1, 0))
    assert BOTH.format("", "right").replace("  ", " ") in seen_tokens(stage, "rows", found)


def test_a_small_error_is_tried_in_float64() -> None:
    rounded = told(spec("low_precision"), CUT)
    assert "in float64 the difference is the same, so that it is not rounding" in rounded
    only = replace(spec("low_precision"), dtypes=("float32",))
    assert "float64" not in told(only, CUT)


class Averaging(nn.Module):
    """The mean of the tokens so far; later calls take the kept sum and forget the count."""

    def __init__(self, size: int, count_is_read: bool = False) -> None:
        super().__init__()
        self.linear, self.count_is_read = nn.Linear(size, size), count_is_read

    def forward(self, hidden: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        mapped = self.linear(hidden)
        kept = cache or {"sum": mapped.new_zeros(len(hidden), 1, 1), "count": mapped.new_zeros(1)}
        first = kept["count"] if self.count_is_read else 0 * kept["count"].detach()
        totals = kept["sum"] + mapped.cumsum(1)
        counts = torch.arange(1, hidden.shape[1] + 1).to(hidden)[:, None] + first
        if cache is not None and hidden.shape[1]:
            cache.update(sum=totals[:, -1:], count=kept["count"] + hidden.shape[1])
        return totals / counts


@pytest.mark.parametrize("count_is_read", [False, True])
def test_what_a_cache_holds_and_the_next_call_does_not_read_is_named(count_is_read: bool) -> None:
    spec = LayerSpec(
        name="averaging",
        make=lambda size: Averaging(size, count_is_read),
        causal=True,
        accepts=("cache",),
        cache=CacheSpec(new=lambda module, batch_size: {}),
    )
    report = attnbench.check(spec, profile="quick", invariants=["calls_may_be_cut_anywhere"])
    assert report.ok == count_is_read
    told = "the next call does not read cache['count'] (1,), which the cache holds"
    assert (told in str(report)) == (not count_is_read)


class Shifted(nn.Module):
    """A token and the one before it, which a call on one token does not keep for the next."""

    def __init__(self, size: int, is_kept: bool = False) -> None:
        super().__init__()
        self.linear, self.is_kept = nn.Linear(size, size), is_kept

    def forward(self, hidden: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        before = hidden.new_zeros(len(hidden), 1, hidden.shape[-1])
        before = before if cache is None else cache.get("last", before)
        if cache is not None and hidden.shape[1] > (not self.is_kept):
            cache["last"] = hidden[:, -1:]
        return self.linear(hidden) + torch.cat([before, hidden], 1)[:, :-1]


@pytest.mark.parametrize("is_kept", [False, True])
def test_what_a_call_does_not_write_to_a_cache_is_named(is_kept: bool) -> None:
    spec = LayerSpec(
        name="shifted",
        make=lambda size: Shifted(size, is_kept),
        causal=True,
        accepts=("cache",),
        cache=CacheSpec(new=lambda module, batch_size: {}),
    )
    report = attnbench.check(spec, profile="quick", invariants=["calls_may_be_cut_anywhere"])
    assert report.ok == is_kept
    told = "a call on 1 token leaves cache['last'] (2, 1, 8) as it was"
    assert (told in str(report)) == (not is_kept)


class Preallocated(nn.Module):
    """Attention to the tokens so far, in slots of a cache of which a single query may see all.

    Or places are counted from the end of the cache.
    """

    def __init__(self, size: int, mistake: str) -> None:
        super().__init__()
        self.mixed, self.mistake = nn.Linear(size, 2 * size), mistake

    def forward(self, hidden: Tensor, cache: dict[str, Any] | None = None) -> Tensor:
        key, value = self.mixed(hidden).chunk(2, -1)
        past, count = 0, hidden.shape[1]
        if cache is not None:
            past = cache["length"]
            cache["length"] = end = past + count
            cache["key"][:, past:end], cache["value"][:, past:end] = key, value
            key, value = cache["key"], cache["value"]
        start = key.shape[1] - count if self.mistake == "counted" else past
        places = torch.arange(start, start + count)[:, None] - torch.arange(key.shape[1])
        scores = hidden @ key.mT + places.to(hidden).sin()
        if self.mistake != "read" or count > 1:
            seen = torch.ones(count, key.shape[1], dtype=torch.bool).tril(past)
            scores = scores.masked_fill(~seen, -torch.inf)
        return scores.softmax(-1) @ value


@pytest.mark.parametrize("mistake", ["", "read", "counted"])
def test_slots_that_nothing_was_written_to_are_named_where_they_are_read(mistake: str) -> None:
    def new(module: nn.Module, rows: int) -> dict[str, Any]:
        weight: Any = module.mixed.weight
        slots = {name: weight.new_zeros(rows, 16, weight.shape[1]) for name in ("key", "value")}
        return {**slots, "length": 0}

    layer = LayerSpec(
        name="preallocated",
        make=lambda size: Preallocated(size, mistake),
        accepts=("cache",),
        causal=True,
        dtypes=("float64", "float32"),
        cache=CacheSpec(new=new, length=lambda cache: cache["length"], capacity=16),
    )
    report = attnbench.check(layer, profile="quick", invariants=[CUT])
    assert report.ok is (not mistake)
    slots = "cache['key'] (1, 16, 8) and cache['value'] (1, 16, 8)"
    text = f"it reads slots of {slots} in which nothing was written: without these its output is"
    assert (text in str(report)) is (mistake == "read")
    told = "slots of the cache in which nothing was written are read"
    assert (told in str(report)) is (mistake == "read")
    text = f"it is right with just the written slots of {slots}"
    assert (text in str(report)) is (mistake == "counted")


class Apart(nn.Module):
    """Tokens that never depend on others; it keeps the last, and calls behind two go wrong."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor, cache: dict[str, Any] | None = None) -> Tensor:
        output: Tensor = self.linear(hidden)
        if cache is None:
            return output
        past = cache.get("length", 0)
        cache.update(length=past + hidden.shape[1], last=hidden[:, -1:].clone())
        return output * 1.1 if past >= 2 else output


def test_that_no_call_reads_what_none_needs_is_not_told() -> None:
    layer = LayerSpec(
        name="apart",
        make=Apart,
        accepts=("cache",),
        causal=True,
        dtypes=("float64", "float32"),
        cache=CacheSpec(new=lambda module, rows: {}),
    )
    found = told(layer, CUT)
    assert "it goes wrong first at test_explanations.py:" in found
    assert "does not read" not in found


class LeftPadded(nn.Module):
    """Two causal steps, of which the first gives NaN at padding, or none does."""

    def __init__(self, size: int, hidden_score: float) -> None:
        super().__init__()
        self.mixed, self.hidden_score = nn.Linear(size, size), hidden_score

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        seen = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).tril()
        if padding_mask is not None:
            seen = seen & padding_mask[:, None]
        for _ in range(2):
            scores = (hidden @ self.mixed(hidden).mT).masked_fill(~seen, self.hidden_score)
            hidden = scores.softmax(-1) @ hidden
        return hidden


@pytest.mark.parametrize("score", [-1e9, -torch.inf])
def test_nan_of_padding_at_the_left_is_told_with_its_line(score: float) -> None:
    layer = LayerSpec(
        name="left_padded",
        make=lambda size: LeftPadded(size, score),
        accepts=("padding_mask",),
        causal=True,
        dtypes=("float64", "float32"),
        laws=frozenset({"left_padding_is_inert"}),
    )
    names = ["left_padding_is_inert", "padded_outputs_are_finite"]
    report = attnbench.check(layer, profile="quick", invariants=names)
    assert report.ok is (score > -torch.inf), str(report)
    if not report.ok:
        shown = str(report)
        assert "left_padded: padding at the left makes outputs of real tokens NaN" in shown
        assert "first NaN in softmax at test_explanations.py:" in shown
        assert "of a row in which all is -inf" in shown
        assert "by design?" not in shown


class Placed(nn.Module):
    """The sum of the tokens so far, each with a place, which may begin anew in each call."""

    def __init__(self, size: int, *, is_right: bool) -> None:
        super().__init__()
        self.linear, self.is_right = nn.Linear(size, size), is_right

    def forward(self, hidden: Tensor, cache: dict[str, Any] | None = None) -> Tensor:
        past = cache["length"] if cache is not None and self.is_right else 0
        places = torch.arange(past, past + hidden.shape[1])
        output = (self.linear(hidden) * places.sin()[:, None].to(hidden)).cumsum(1)
        if cache is not None and hidden.shape[1]:
            output = output + cache["sum"]
            cache.update(sum=output[:, -1:], length=cache["length"] + hidden.shape[1])
        return output


@pytest.mark.parametrize("is_right", [True, False])
def test_positions_that_begin_anew_are_told(is_right: bool) -> None:
    def new(module: nn.Module, rows: int) -> dict[str, Any]:
        weight: Any = module.linear.weight
        return {"sum": weight.new_zeros(rows, 1, weight.shape[1]), "length": 0}

    layer = LayerSpec(
        name="placed",
        make=lambda size: Placed(size, is_right=is_right),
        accepts=("cache",),
        causal=True,
        dtypes=("float64", "float32"),
        cache=CacheSpec(new=new, length=lambda cache: cache["length"]),
    )
    report = attnbench.check(layer, profile="quick", invariants=[CUT])
    assert report.ok is is_right
    assert is_right or (
        "a call behind another one is right if the result of arange at test_explanations.py:"
        in report.outcomes[0].reason
    )
    assert is_right or "goes on behind the tokens that are cached" in report.outcomes[0].reason
    assert "a first call" not in str(report)


class Numbered(nn.Module):
    """Causal attention with a place added to each token: of its slot, or of the real ones."""

    def __init__(self, size: int, *, is_right: bool) -> None:
        super().__init__()
        self.places, self.is_right = nn.Embedding(64, size), is_right

    def forward(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        places = torch.arange(hidden.shape[1]).expand(hidden.shape[:2])
        seen = torch.ones(hidden.shape[1], hidden.shape[1], dtype=torch.bool).tril()[None]
        if padding_mask is not None:
            seen = seen & padding_mask[:, None]
            if self.is_right:
                places = (padding_mask.long().cumsum(1) - 1).clamp(min=0)
        hidden = hidden + self.places(places)
        return (hidden @ hidden.mT).masked_fill(~seen, -1e9).softmax(-1) @ hidden


@pytest.mark.parametrize("is_right", [True, False])
def test_positions_that_count_padding_are_told(is_right: bool) -> None:
    layer = LayerSpec(
        name="numbered",
        make=lambda size: Numbered(size, is_right=is_right),
        accepts=("padding_mask",),
        causal=True,
        dtypes=("float64", "float32"),
        laws=frozenset({"left_padding_is_inert"}),
    )
    report = attnbench.check(layer, profile="quick", invariants=["left_padding_is_inert"])
    assert report.ok is is_right
    text = "with 3 padded tokens it is right if the result of arange at test_explanations.py:"
    assert is_right or text in report.outcomes[0].reason
    assert is_right or "is counted from the first real token" in report.outcomes[0].reason
