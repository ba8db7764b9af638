"""Which tensor of a cache the message of a failing program names, and after which step."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec
from attnbench.checking.outcomes import Outcome

SLOTS = ("key", "value")


class Layer(nn.Module):
    """Attention behind a sum with the last token; the cache holds that, keys and values."""

    def __init__(self, size: int, mistake: str) -> None:
        super().__init__()
        self.qkv, self.mistake = nn.Linear(size, 3 * size, bias=False), mistake

    def forward(self, hidden: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        batch, length, _ = hidden.shape
        is_new, copies = cache is None or not cache["key"].shape[1], 1
        if self.mistake == "twice" and cache is not None:
            copies = 2
        cache = new(self, batch) if cache is None else cache
        mixed = hidden
        if self.mistake != "skipped" or length > 1:
            mixed = hidden + torch.cat([cache["last"], hidden], 1)[:, :length]
        if self.mistake != "behind_chunks" or is_new or length == 1:
            cache["last"] = torch.cat([cache["last"], hidden], 1)[:, -1:]
        query, key, value = self.qkv(mixed).chunk(3, -1)
        if self.mistake == "again":
            cache["key"] = 2 * cache["key"]
        if self.mistake == "slots" and not is_new:
            key, value = key.repeat(1, 2, 1), value.repeat(1, 2, 1)
        if self.mistake == "turned" and not is_new:
            query = query.flip(-1)
        added = key, value
        for _ in range(copies):
            key, value = (torch.cat([cache[n], t], 1) for n, t in zip(SLOTS, added, strict=True))
            cache["key"], cache["value"] = key, value
        cache["sum"] = cache["sum"] + hidden.sum(1) * (1 if is_new or self.mistake != "sum" else 2)
        ahead = torch.ones(length, key.shape[1]).triu(key.shape[1] - length + 1).bool()
        weights = (query @ key.mT).masked_fill(ahead, -torch.inf).softmax(-1)
        sums = cache["sum"][:, None] - hidden.sum(1, keepdim=True) + hidden.cumsum(1)
        far = (hidden @ cache["far"].mT).softmax(-1) @ torch.arange(3.0).to(query)[:, None]
        return weights @ value + 0.1 * sums + far


def new(module: nn.Module, batch_size: int) -> dict[str, Tensor]:
    weight: Any = module.qkv.weight
    slots = {name: weight.new_zeros(batch_size, 0, weight.shape[1]) for name in ("key", "value")}
    last = weight.new_zeros(batch_size, 1, weight.shape[1])
    far = torch.linspace(-1, 1, 3 * weight.shape[1]).to(weight).reshape(1, 3, -1)
    return {**slots, "last": last, "sum": last[:, 0], "far": far.repeat(batch_size, 1, 1)}


@functools.cache
def cut(make: Any, new: Any = lambda module, batch_size: {}, **fields: Any) -> Outcome:
    """What cutting the calls of a causal layer finds."""
    fields = {"dtypes": ("float64",), **fields}
    spec = LayerSpec(
        name="layer",
        make=make,
        causal=True,
        accepts=("cache",),
        cache=CacheSpec(new=new),
        **fields,
    )
    report = attnbench.check(spec, profile="quick", invariants=["calls_may_be_cut_anywhere"])
    (found,) = report.outcomes
    return found


def checked(mistake: str) -> Outcome:
    """What a check finds of a layer with a mistake."""
    return cut(lambda size: Layer(size, mistake), new, dtypes=("float32", "float64"))


def told(mistake: str) -> str:
    """What a check tells of a layer with a mistake."""
    return checked(mistake).reason if checked(mistake).status == "failed" else ""


@pytest.mark.parametrize(
    ("mistake", "cause"),
    [
        ("behind_chunks", "what calls leave in the cache is not what one call on the same tokens"),
        ("turned", "from what one call leaves in the cache, the next call computes other outputs"),
        ("again", "a call with a cache changes what it holds of earlier tokens"),
        ("slots", "calls leave another number of slots in the cache than one call"),
        ("twice", "each token adds several slots to the cache"),
    ],
)
def test_the_likely_cause_is_what_is_told_of_the_cache(mistake: str, cause: str) -> None:
    assert str(checked(mistake).diagnosis).startswith(cause)


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (
            "behind_chunks",
            "after begin 1 row, append 1, append 2, cache['last'] (1, 1, 8) is not what one call on"
            " 3 tokens leaves: with that in its place the next call is right",
        ),
        ("skipped", "in what the call on 1 token adds, cache['key'] (1, 2, 8) and cache['value']"),
        ("turned", "the call on 1 token leaves in the cache what one call leaves, but computes"),
        ("again", "the call on 1 token changes what cache['key'] holds of earlier tokens"),
        (
            "slots",
            "after the call on 1 token, cache['key'] and cache['value'] are of the shape (1, 3, 8),"
            " after one call on 2 tokens (1, 2, 8)",
        ),
        ("twice", "each token adds 2 slots to cache['key'] and cache['value']"),
        ("sum", "after the call on 1 token, cache['sum'] (1, 8) is not what one call on 2 tokens"),
    ],
)
def test_the_tensor_that_is_wrong_is_named(mistake: str, sentence: str) -> None:
    found = told(mistake)
    assert sentence in found
    assert "does not read cache['far']" not in found  # keys that softmax compares are read


def test_the_operation_of_the_last_call_that_goes_wrong_is_named() -> None:
    assert re.search(r"goes wrong first at \S+:\d+: query = query\.flip\(-1\)\n", told("turned"))
    skipped = r"chunk\(3, -1\), to which one call gives the result of add at \S+:\d+: mixed = "
    assert re.search(skipped, told("skipped"))


class DecayingBetween(nn.Module):
    """A sum that decays between the tokens of a call, and not between calls."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor, cache: Any = None) -> Tensor:
        values, outputs = self.linear(hidden), []
        state = cache["state"] if cache else torch.zeros_like(hidden[:, 0])
        for token in range(hidden.shape[1]):
            if token:
                state = state * 0.5
            state = state + values[:, token]
            outputs.append(state)
        if cache is not None:
            cache["state"] = state
        return torch.stack(outputs, 1) if outputs else hidden


def test_what_one_call_gives_a_line_is_told_where_that_is_its_own_result_before() -> None:
    found = cut(DecayingBetween)
    told = (
        r"first in add at (\S+: state = state \+ values\[:, token\]), which is given the result of "
        r"add at \1; one call gives it that of mul at \S+: state = state \* 0\.5\n"
    )
    assert re.search(told, found.reason), found.reason


class Unscaled(nn.Module):
    """A call on several tokens behind others does not scale its scores; what is ahead is filled."""

    def __init__(self, size: int, fill: float) -> None:
        super().__init__()
        self.linear, self.fill = nn.Linear(size, size), fill

    def forward(self, hidden: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        key, count = self.linear(hidden), hidden.shape[1]
        if cache is not None:
            cache["key"] = key = torch.cat([*cache.values(), key], 1)
        past = key.shape[1] - count
        scores = hidden @ key.mT
        if not past or count == 1:
            scores = scores * 0.25
        ahead = torch.ones(count, key.shape[1]).triu(past + 1).bool()
        return scores.masked_fill(ahead, self.fill).softmax(-1) @ key


@pytest.mark.parametrize("fill", [-1e9, torch.finfo(torch.float32).min, -torch.inf])
def test_scores_that_are_wrong_beside_those_of_a_mask_are_named(fill: float) -> None:
    found = cut(lambda size: Unscaled(size, fill), lambda module, rows: {})
    told = (
        r"first in masked_fill at .*; one call gives it that of mul at \S+:\d+: scores = scores \*"
    )
    assert re.search(told, found.reason)


class Latent(nn.Module):
    """The cache holds what a map makes of tokens, and a norm, which is made anew in each call."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(size, 4), nn.Linear(4, size)

    def forward(self, hidden: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        latent, past = self.down(hidden), 0
        if cache:
            past, latent = cache[0].shape[1], torch.cat([cache[0], latent], 1)
        latent = latent / (1 + latent.norm(dim=-1, keepdim=True))
        if cache is not None:
            cache[:] = [latent]
        sums = self.up(latent).cumsum(1)
        return sums[:, past:]


def test_the_operation_is_named_where_it_runs_on_all_that_is_kept() -> None:
    found = cut(Latent, lambda module, batch_size: [])
    assert "the call on 1 token changes what cache[0] holds of earlier tokens" in found.reason
    assert re.search(r"first in div at \S+:\d+: latent = latent / \(1 \+ latent", found.reason)


def test_nothing_is_told_of_a_right_layer() -> None:
    assert told("") == ""


class Twice(nn.Module):
    """With a cache it sums from the state, whose decay it forgets at the third token."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.out = nn.Linear(size, size)

    def forward(self, hidden: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        past = cache[:] if cache else []
        tokens, sums = [*past, *hidden.unbind(1)], []
        for end in range(len(past) + 1, len(tokens) + 1):
            decay = [0.5 ** (end - place) for place in range(1, end + 1)]
            if cache is not None and end > 2:
                decay[0] = 1.0
            sums.append(sum(d * token for d, token in zip(decay, tokens[:end], strict=True)))
        if cache is not None:
            cache[:] = tokens
        return self.out(torch.stack(sums, 1)) if sums else hidden


def test_a_first_call_with_a_cache_that_is_another_one_is_told_with_its_length() -> None:
    found = cut(Twice, lambda module, batch_size: [])
    told = (
        "already a first call on 3 tokens, with a new cache, gives other outputs than one without"
    )
    assert f"{told} a cache, and none on fewer does" in found.reason


class Flat(nn.Module):
    """The cache has a slot for each head of a token; with a cache the scale is missing."""

    def __init__(self, size: int, *, by_head: bool) -> None:
        super().__init__()
        self.qkv, self.by_head = nn.Linear(size, 3 * size, bias=False), by_head

    def forward(self, hidden: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        heads = [t.unflatten(-1, (2, -1)) for t in self.qkv(hidden).chunk(3, -1)]
        query, key, value = (t.transpose(1, 2) for t in heads)
        if cache is not None:
            key, value = (
                torch.cat([self.unflat(cache[name]), new], 2) if name in cache else new
                for name, new in (("key", key), ("value", value))
            )
            cache.update(key=self.flat(key), value=self.flat(value))
        scores = query @ key.mT * (1.0 if cache is not None else 0.3)
        ahead = torch.ones(scores.shape[-2:]).triu(key.shape[2] - query.shape[2] + 1).bool()
        output = scores.masked_fill(ahead, -torch.inf).softmax(-1) @ value
        return output.transpose(1, 2).flatten(2)

    def flat(self, tensor: Tensor) -> Tensor:
        return (tensor if self.by_head else tensor.transpose(1, 2)).flatten(1, 2)

    def unflat(self, slots: Tensor) -> Tensor:
        if self.by_head:
            return slots.unflatten(1, (2, -1))
        return slots.unflatten(1, (-1, 2)).transpose(1, 2)


@pytest.mark.parametrize("by_head", [True, False])
def test_slots_that_a_token_has_by_design_are_no_cause(by_head: bool) -> None:
    found = cut(
        lambda size: Flat(2 * -(-size // 2), by_head=by_head), sizes=lambda size: 2 * -(-size // 2)
    )
    assert found.status == "failed"
    assert "each token adds" not in found.reason
    assert str(found.diagnosis).startswith("a first call with a new cache already gives other")


class ShortConvolution(nn.Module):
    """A convolution over three tokens; a first call on fewer keeps its zeros behind them."""

    def __init__(self, size: int, *, is_right: bool) -> None:
        super().__init__()
        self.weights, self.is_right = nn.Linear(size, 3), is_right

    def forward(self, hidden: Tensor, cache: dict[str, Tensor] | None = None) -> Tensor:
        zeros = hidden.new_zeros(len(hidden), 2, hidden.shape[2])
        behind = torch.cat([cache["last"] if cache else zeros, hidden], 1)
        if cache is not None and not cache and hidden.shape[1] == 1 and not self.is_right:
            cache["last"] = torch.cat([hidden, zeros[:, 1:]], 1)
        elif cache is not None:
            cache["last"] = behind[:, -2:]
        parts = behind.unfold(1, 3, 1)
        return parts @ self.weights.weight.sum(1)


@pytest.mark.parametrize("is_right", [True, False])
def test_what_a_short_first_call_leaves_is_told(is_right: bool) -> None:
    found = cut(functools.partial(ShortConvolution, is_right=is_right))
    assert found.ok == is_right
    told = "behind a first call on 1 token the next one is wrong, behind one on 2 to 8 it is right"
    assert is_right or told in found.reason


class Decaying(nn.Module):
    """A sum of products of the tokens so far, which decays by half with each of them."""

    def __init__(self, size: int, mistake: str) -> None:
        super().__init__()
        self.both, self.mistake = nn.Linear(size, 2 * size), mistake

    def forward(self, hidden: Tensor, cache: Any = None) -> Tensor:
        key, value = self.both(hidden).chunk(2, -1)
        state = torch.zeros_like(key[:, :1].mT @ value[:, :1]) if cache is None else cache["state"]
        outputs = []
        for token in range(hidden.shape[1]):
            place = slice(token, token + 1)
            state = 0.5 * state + key[:, place].mT @ value[:, place]
            outputs.append(hidden[:, place] @ state)
        if cache is not None and hidden.shape[1]:
            old = cache["state"] * 0.5 ** hidden.shape[1]
            extra = {"lost": -1.0, "weighed": 3.0, "added": 0.0}.get(self.mistake, 0.0)
            noise = key[:, -1:].mT @ key[:, -1:] if self.mistake == "added" else 0.0
            cache["state"] = state + extra * old + noise * (old != 0).any()
        return torch.cat(outputs, 1) if outputs else hidden


def state_of(module: nn.Module, batch_size: int) -> dict[str, Tensor]:
    weight: Any = module.both.weight
    return {"state": weight.new_zeros(batch_size, weight.shape[1], weight.shape[1])}


@pytest.mark.parametrize(
    ("mistake", "cause", "told"),
    [
        ("lost", "a call leaves in the cache what a first call on its tokens alone leaves", "lost"),
        (
            "weighed",
            "a call keeps what the cache holds of earlier calls with a wrong",
            "counts 4 t",
        ),
        ("added", "what calls leave in the cache is not what one call on the same", "is right\n"),
    ],
)
def test_what_a_call_keeps_of_a_state_is_told(mistake: str, cause: str, told: str) -> None:
    found = cut(lambda size: Decaying(size, mistake), state_of)
    assert found.status == "failed"
    assert str(found.diagnosis).startswith(cause)
    (line,) = [line for line in found.reason.splitlines(True) if "cache['state']" in line]
    assert told in line


class Counted(nn.Module):
    """The sum of the tokens so far, each with the wave of its place, which a cache counts."""

    def __init__(self, size: int, mistake: str) -> None:
        super().__init__()
        self.linear, self.mistake = nn.Linear(size, size), mistake

    def forward(self, hidden: Tensor, cache: Any = None) -> Tensor:
        count = hidden.shape[1]
        past = 0 if cache is None else cache["count"]
        places = torch.arange(past, past + count).to(hidden)[:, None]
        new = self.linear(hidden) * places.cos()
        if cache is not None:
            cache["value"] = new = torch.cat([cache["value"], new], 1)
            cache["count"] += 2 if self.mistake == "chunks" and count > 2 else count
        return new.cumsum(1)[:, new.shape[1] - count :]


@pytest.mark.parametrize(
    ("mistake", "invariant", "cause"),
    [
        ("crop", "cropped_slots_are_forgotten", "after a crop, a number that the cache keeps, as"),
        ("chunks", "calls_may_be_cut_anywhere", ""),
        ("right", "cropped_slots_are_forgotten", "None"),
    ],
)
def test_a_number_that_a_cache_keeps_is_named(mistake: str, invariant: str, cause: str) -> None:
    def new(module: nn.Module, rows: int) -> dict[str, Any]:
        weight: Any = module.linear.weight
        return {"value": weight.new_zeros(rows, 0, weight.shape[1]), "count": 0}

    def crop(cache: dict[str, Any], length: int) -> dict[str, Any]:
        count = cache["count"] if mistake == "crop" else length
        return {"value": cache["value"][:, :length], "count": count}

    spec = LayerSpec(
        name="counted",
        make=lambda size: Counted(size, mistake),
        causal=True,
        accepts=("cache",),
        dtypes=("float64",),
        cache=CacheSpec(new=new, crop=crop),
    )
    (found,) = attnbench.check(spec, profile="quick", invariants=[invariant]).outcomes
    assert str(found.diagnosis).startswith(cause)
    told = "cache['count'] is "
    assert (told in found.reason) is (mistake == "crop")


class LastOfTheCall(nn.Module):
    """The sum of a token and the one before it; a call on several keeps the first one of them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor, cache: Any = None) -> Tensor:
        last = torch.zeros_like(hidden[:, :1]) if not cache else cache["last"]
        before = torch.cat([last, hidden], 1)[:, : hidden.shape[1]]
        if cache is not None and hidden.shape[1]:
            cache["last"] = hidden[:, :1]
        output: Tensor = self.linear(hidden) + before
        return output


def test_what_a_call_on_several_tokens_leaves_is_told_beside_calls_on_one() -> None:
    found = cut(LastOfTheCall)
    assert found.status == "failed"
    assert str(found.diagnosis).startswith("what a call on several tokens leaves in the cache is")
    assert "leaves in cache['last']" in found.reason
