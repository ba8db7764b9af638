"""What the message of a failing program tells of the tokens that an output depends on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec

CUT = "calls_may_be_cut_anywhere"


class TopLeft(nn.Module):
    """Each call's rows see the first keys, and their own token on the way past the attention."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(size, 3 * size)

    def forward(self, hidden: Tensor, cache: Any = None) -> Tensor:
        query, key, value = self.qkv(hidden).chunk(3, -1)
        if cache is not None:
            cache["key"] = key = torch.cat([cache["key"], key], 1)
            cache["value"] = value = torch.cat([cache["value"], value], 1)
        return hidden + self.pooled(query, key, value)

    def pooled(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool).tril()
        return (query @ key.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ value


class ScaledInSteps(TopLeft):
    """A call of one token with a cache has other weights."""

    factor, wide_factor = 2.0, 1.0

    def pooled(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length, total = query.shape[1], key.shape[1]
        seen = torch.ones(length, total, dtype=torch.bool).tril(total - length)
        cached = self.wide_factor if length > 1 else self.factor
        scores = query @ key.mT * (cached if length < total else 1.0)
        return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value


class ScaledInChunks(ScaledInSteps):
    """A call of several tokens behind cached ones has other weights."""

    factor, wide_factor = 1.0, 2.0


class GapsInOneCall(TopLeft):
    """Without cached tokens, a row sees the first key and its own; behind cached ones all keys."""

    def pooled(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length, total = query.shape[1], key.shape[1]
        seen = torch.ones(length, total, dtype=torch.bool).tril(total - length)
        if length == total:
            seen = torch.eye(length, dtype=torch.bool) | (torch.arange(total) == 0)
        return (query @ key.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ value


class Crossing(nn.Module):
    """Its row i sees the first i + 1 tokens of the source, counted from each call's first row."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.out = nn.Linear(size, size)

    def forward(self, hidden: Tensor, source: Tensor, cache: Any = None) -> Tensor:
        seen = torch.ones(hidden.shape[1], source.shape[1], dtype=torch.bool).tril()
        scores = (hidden @ source.mT).masked_fill(~seen, -torch.inf)
        return self.out(scores.softmax(-1) @ source)


def new(module: nn.Module, batch_size: int) -> dict[str, Tensor]:
    weight: Any = next(module.parameters())
    return {name: weight.new_zeros(batch_size, 0, weight.shape[1]) for name in ("key", "value")}


@pytest.mark.parametrize(
    ("make", "beside", "line"),
    [
        (
            TopLeft,
            (),
            "+ 1, token 3 depends on tokens 0 and 3; in one call it depends on tokens 0 to 3",
        ),
        (
            GapsInOneCall,
            (),
            "in one call it depends on tokens 0 and 2: the one call leaves out tokens between "
            "them, and may be what is wrong",
        ),
        (ScaledInSteps, (), "cut as 2 at once or 1 + 2 it is right"),
        (ScaledInChunks, (), "cut as 3 at once, 1 + 1 + 1 or 2 + 1 it is right"),
        (
            Crossing,
            ("source",),
            "token 1 depends on token 0 of the source; in one call on tokens 0 and 1 of it",
        ),
    ],
)
def test_the_message_tells_what_a_wrong_output_depends_on(
    make: type[nn.Module], beside: tuple[str, ...], line: str
) -> None:
    spec = LayerSpec(
        name="decoder",
        make=make,
        causal=True,
        accepts=(*beside, "cache"),
        dtypes=("float32",),
        cache=CacheSpec(new=new),
    )
    (found,) = attnbench.check(spec, profile="quick", invariants=[CUT]).outcomes
    assert found.status == "failed"
    assert line in found.reason


class Window(TopLeft):
    """A token sees three; in a call behind others, perhaps none before the last one's window."""

    widest = 3

    def pooled(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length, total = query.shape[1], key.shape[1]
        seen = torch.ones(length, total, dtype=torch.bool).tril(total - length)
        seen = seen & seen.triu(total - length - 2)
        if length < total:
            seen[:, : max(0, total - self.widest)] = False
        return (query @ key.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ value


class Narrow(Window):
    """In a call behind others, each token sees one token less, the last one too."""

    widest = 2


@pytest.mark.parametrize("make", [Window, Narrow])
def test_tokens_that_see_no_further_back_than_the_last_one_are_told(make: type[nn.Module]) -> None:
    spec = LayerSpec(
        name="windowed",
        make=make,
        causal=True,
        window=3,
        accepts=("cache",),
        dtypes=("float32",),
        cache=CacheSpec(new=new),
    )
    (found,) = attnbench.check(spec, profile="quick", invariants=[CUT]).outcomes
    told = "in a call on several tokens behind others, the first see no further back than the last"
    assert found.status == "failed"
    assert str(found.diagnosis).startswith(told) is (make is Window)
    assert "a mask hides keys of token" in found.reason


class Ring(TopLeft):
    """The last of three keys; behind cached tokens one more, and they are read in another order."""

    more, turns = 1, 1

    def pooled(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length, total = query.shape[1], key.shape[1]
        at = torch.arange(total)
        own = at[total - length :, None]
        seen = (at <= own) & (at > own - (3 + self.more * (length < total)))
        if length < total:
            key, value, seen = key.roll(self.turns, 1), value.roll(self.turns, 1), seen.roll(1, 1)
        return (query @ key.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ value


class Hiding(Ring):
    """The same with a window that is too narrow behind cached tokens."""

    more = -1


class Turned(Ring):
    """The mask is turned by one, and the keys are not."""

    more, turns = 0, 0


@pytest.mark.parametrize("make", [Ring, Hiding, TopLeft, Turned])
def test_the_mask_that_hides_or_shows_keys_is_named(make: type[nn.Module]) -> None:
    spec = LayerSpec(
        name="ring",
        make=make,
        causal=True,
        accepts=("cache",),
        dtypes=("float32",),
        cache=CacheSpec(new=new),
    )
    (found,) = attnbench.check(spec, profile="quick", invariants=[CUT]).outcomes
    told = (
        "leaves keys"
        if make is Ring
        else "hides keys"
        if make is not Turned
        else "hides other keys"
    )
    assert f"behind other calls with the cache, a mask {told}" in str(found.diagnosis)
    assert f"a mask {told.replace('other ', '')} of token" in found.reason
    assert (" and leaves keys of token" in found.reason) is (make is Turned)
    assert "it is right: masked_fill at test_seen_tokens.py" in found.reason
