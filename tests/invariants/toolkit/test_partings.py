"""The line in which a layer parts from another way to compute the same."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec


class Grouped(nn.Module):
    """Heads of a fused projection, whose features are those of a query, a key and a value each."""

    def __init__(self, size: int, mistake: bool = False) -> None:
        super().__init__()
        self.qkv, self.mistake = nn.Linear(size, 3 * size), mistake

    def forward(self, hidden: Tensor) -> Tensor:
        mixed = self.qkv(hidden)
        if self.mistake:
            parts = [p.unflatten(-1, (2, -1)) for p in mixed.chunk(3, -1)]
        else:
            parts = list(mixed.unflatten(-1, (2, 3, -1)).unbind(-2))
        query, key, value = (part.transpose(1, 2) for part in parts)
        pooled = nn.functional.scaled_dot_product_attention(query, key, value)
        return pooled.transpose(1, 2).flatten(2)


class HeadByHead(Grouped):
    def forward(self, hidden: Tensor) -> Tensor:
        outputs = []
        for rows in self.qkv.weight.chunk(2), self.qkv.bias.chunk(2):
            outputs.append(rows)
        pooled = []
        for weight, bias in zip(*outputs, strict=True):
            query, key, value = (hidden @ weight.mT + bias).chunk(3, -1)
            scores = query * query.shape[-1] ** -0.5 @ key.mT
            pooled.append(scores.softmax(-1) @ value)
        return torch.cat(pooled, -1)


class Experts(nn.Module):
    """The two best of three experts for each token."""

    def __init__(self, size: int, mistake: bool = False) -> None:
        super().__init__()
        self.gate = nn.Linear(size, 3, bias=False)
        self.experts = nn.ModuleList(nn.Linear(size, size) for _ in range(3))
        self.mistake = mistake

    def forward(self, hidden: Tensor) -> Tensor:
        tokens = hidden.flatten(0, 1)
        shares, chosen = self.gate(tokens).softmax(-1).topk(2)
        output = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            token, place = (chosen == number).nonzero(as_tuple=True)
            part = expert(tokens[token]) * shares[token, place, None]
            if self.mistake:
                output[token] = part
            else:
                output.index_add_(0, token, part)
        return output.view_as(hidden)


class AllExperts(Experts):
    def forward(self, hidden: Tensor) -> Tensor:
        shares, chosen = self.gate(hidden).softmax(-1).topk(2)
        taken = hidden.new_zeros(*hidden.shape[:-1], 3).scatter(-1, chosen, shares)
        every = torch.stack([expert(hidden) for expert in self.experts], -1)
        return (every * taken.unsqueeze(-2)).sum(-1)


class InChunks(nn.Module):
    """A projection of four tokens at a time, which may leave out those behind the last four."""

    def __init__(self, size: int, mistake: bool = False) -> None:
        super().__init__()
        self.out, self.mistake = nn.Linear(size, size), mistake

    def forward(self, hidden: Tensor) -> Tensor:
        output = torch.zeros_like(hidden)
        count = hidden.shape[1] // 4 * 4 if self.mistake else hidden.shape[1]
        for start in range(0, count, 4):
            output[:, start : start + 4] = self.out(hidden[:, start : start + 4])
        return hidden + output


class AtOnce(InChunks):
    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.out(hidden)


def spec(make: Any, **fields: Any) -> LayerSpec:
    fields = {"dtypes": ("float64", "float32"), "sizes": lambda size: size // 2 * 2 or 2, **fields}
    return LayerSpec(name="layer", make=make, **fields)


HEAD_BY_HEAD, ALL_EXPERTS, AT_ONCE = map(spec, (HeadByHead, AllExperts, AtOnce))


@pytest.mark.parametrize(
    ("make", "other", "line"),
    [
        (Grouped, "HEAD_BY_HEAD", "split at test_partings.py:26: parts = [p.unflatten"),
        (Experts, "ALL_EXPERTS", "index_put at test_partings.py:64: output[token] = part"),
        (InChunks, "AT_ONCE", "add at test_partings.py:90: return hidden + output"),
    ],
)
def test_a_line_is_named_behind_which_nothing_is_that_of_same_as(
    make: Any, other: str, line: str
) -> None:
    address = f"{__file__}:{other}"
    for mistake in (False, True):
        declared = spec(lambda size, m=mistake: make(size, m), same_as=address)
        names = ["agrees_with_same_as"]
        (found,) = attnbench.check(declared, profile="quick", invariants=names).outcomes
        assert found.status == ("failed" if mistake else "passed")
        assert not mistake or f"it parts from layer in {line}" in found.reason
        few = re.search(r"on \d+ tokens, only outputs? .* wrong", found.reason)
        assert bool(few) == (mistake and make is InChunks)


class Decaying(nn.Module):
    """Linear attention with a decay, in chunks and by steps; a chunk's past decays too little."""

    def __init__(self, size: int, mistake: bool) -> None:
        super().__init__()
        self.qkv, self.mistake = nn.Linear(size, 3 * size), mistake

    def forward(self, hidden: Tensor, cache: Any = None) -> Tensor:
        query, key, value = self.qkv(hidden).chunk(3, -1)
        places = torch.arange(hidden.shape[1]).to(hidden)
        output = (query @ key.mT * 0.5 ** (places[:, None] - places)).tril() @ value
        if cache is not None:
            faded = 0.5 ** (places + (0 if self.mistake else 1))
            output = output + query @ cache["state"] * faded[:, None]
            left = key * 0.5 ** (len(places) - 1 - places)[:, None]
            cache["state"] = cache["state"] * 0.5 ** len(places) + left.mT @ value
        return output

    def steps(self, hidden: Tensor, cache: Any = None) -> Tensor:
        cache, outputs = cache or new(self, len(hidden)), []
        for token in hidden.split(1, 1):
            query, key, value = self.qkv(token).chunk(3, -1)
            cache["state"] = cache["state"] * 0.5 + key.mT @ value
            outputs.append(query @ cache["state"])
        return torch.cat(outputs, 1)


def new(module: Decaying, rows: int) -> dict[str, Tensor]:
    return {"state": module.qkv.weight.new_zeros(rows, *[module.qkv.in_features] * 2)}


@pytest.mark.parametrize("mistake", [False, True])
def test_the_lines_are_named_in_which_two_paths_part(mistake: bool) -> None:
    law = "chunked_equals_recurrent"
    declared = spec(
        lambda size: Decaying(size, mistake),
        causal=True,
        accepts=("cache",),
        cache=CacheSpec(new=new),
        laws=(law,),
        paths={law: ("steps", "forward")},
    )
    (found,) = attnbench.check(declared, profile="quick", invariants=[law]).outcomes
    assert found.status == ("failed" if mistake else "passed")
    if mistake:
        assert "behind a cache forward is wrong, whichever left it" in found.reason
        line = 'test_partings.py:141: output = output + query @ cache["state"] * faded[:, None]'
        assert f"forward parts from steps in bmm at {line}" in found.reason
