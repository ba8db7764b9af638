"""The attribute that a report names where a module keeps something of an earlier call."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec


class Rates:
    """Turns by position, in a table that is made for the longest call so far."""

    def __init__(self) -> None:
        self.longest, self.turns = 0, torch.zeros(0, 1)

    def __call__(self, count: int) -> Tensor:
        if count > self.longest:
            self.longest = count
            self.turns = (torch.arange(count, dtype=torch.float64) / count).cos()[:, None]
        return self.turns[:count]


class Decoder(nn.Module):
    """Adds what is computed of its source, and a place, and keeps one of what it needs, or none."""

    def __init__(self, size: int, mistake: str) -> None:
        super().__init__()
        self.own, self.other, self.mistake = nn.Linear(size, size), nn.Linear(size, size), mistake
        self.rates = Rates()
        self.held: dict[str, Tensor] = {}
        self.calls, self.start = 0, None

    def forward(
        self, hidden: Tensor, source: Tensor | None = None, cache: dict[str, Any] | None = None
    ) -> Tensor:
        self.calls += 1
        start = 0 if cache is None else cache["length"]
        if self.mistake == "start" and self.start is not None:
            start = self.start
        if cache is not None:
            self.start = start
            cache["length"] += hidden.shape[1]
        source = hidden.new_ones(len(hidden), 1, hidden.shape[2]) if source is None else source
        if self.mistake != "source" or "other" not in self.held:
            self.held["other"] = self.other(source.mean(1, keepdim=True))
        places = torch.arange(start, start + hidden.shape[1])[:, None]
        output = self.own(hidden) + self.held["other"] + places
        if self.mistake == "rates":
            output = output * self.rates(hidden.shape[1]).to(output.dtype)
        return output


def named(mistake: str, invariant: str, **fields: Any) -> str:
    spec = LayerSpec(name="decoder", make=lambda size: Decoder(size, mistake), **fields)
    (found,) = attnbench.check(spec, profile="quick", invariants=[invariant]).outcomes
    assert found.status == "failed", found
    return found.reason


@pytest.mark.parametrize("invariant", ["changed_parameters_are_used", "source_is_that_of_the_item"])
def test_what_is_kept_of_a_source_is_named_with_its_line(invariant: str) -> None:
    told = named("source", invariant, accepts=("source",))
    assert "an earlier call is kept in held['other'] (test_kept_values.py:50: " in told
    assert told.endswith("with what a new module has there, the output is right")


def test_a_part_of_an_object_is_named_if_it_alone_is_stale() -> None:
    told = named("rates", "layer_calls_leave_no_trace")
    assert "an earlier call is kept in rates.longest: with what a new module has there" in told


def test_what_is_kept_of_an_earlier_call_with_a_cache_is_named() -> None:
    cache = CacheSpec(new=lambda module, rows: {"length": 0}, length=lambda cache: cache["length"])
    fields: dict[str, Any] = {"accepts": ("cache",), "causal": True, "cache": cache}
    told = named("start", "calls_may_be_cut_anywhere", **fields)
    assert "an earlier call is kept in start: with what a new module has there" in told


def test_nothing_is_said_of_a_module_that_keeps_nothing() -> None:
    spec = LayerSpec(name="decoder", make=lambda size: Decoder(size, "none"), accepts=("source",))
    names = ["changed_parameters_are_used", "source_is_that_of_the_item"]
    assert attnbench.check(spec, profile="quick", invariants=names).ok
