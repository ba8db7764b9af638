"""The attribute that a report names where a module keeps something of an earlier call."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec
from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation
from attnbench.invariants.layers.module_state import layer_calls_leave_no_trace
from attnbench.invariants.toolkit.kept_values import explained
from attnbench.invariants.toolkit.layer_rounding import copied
from attnbench.subject.lookup import resolve


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
    place = r"call is kept in held\['other'\] \(test_kept_values\.py:\d+: self\.held\[.other.\] = "
    assert re.search(place, told)
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


class First(nn.Linear):
    """A projection that keeps the mean of its first call, and a tensor that has a graph."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size)
        self.first: Tensor | None = None
        self.doubled = 2 * self.weight

    def forward(self, hidden: Tensor) -> Tensor:
        if self.first is None:
            self.first = hidden.mean().detach()
        return super().forward(hidden) + self.first


def test_a_kept_value_is_named_with_its_line_though_torch_copies_no_such_module() -> None:
    (subject,) = resolve(LayerSpec(name="first", make=First))
    place = r"kept in first \(test_kept_values\.py:\d+: self\.first = hidden\.mean\(\)"
    for count, calls in ((1, "a call on 1 token"), (3, "a call on 3 tokens")):
        with pytest.raises(InvariantViolation, match=f"after {calls}, output.*\n.*{place}"):
            layer_calls_leave_no_trace.check(subject, Case((1,), count, count, 4, 4, 4))


def test_what_is_kept_is_looked_for_only_where_a_finding_is_read() -> None:
    asked = []

    def module(rate: float) -> nn.Module:
        made = nn.Dropout(rate)
        asked.append(rate)
        return made

    def is_right(module: nn.Module) -> bool:
        return isinstance(module, nn.Dropout) and module.p == 0.25

    violation = InvariantViolation("it is wrong")
    found = explained(violation, lambda: (module(0.5), module(0.25)), is_right)
    assert not asked
    assert {str(found) for _ in range(3)} == {
        "it is wrong\n  an earlier call is kept in p: with what a new module has there, the output "
        "is right"
    }
    assert asked == [0.5, 0.25]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_finding_is_read_though_what_is_looked_for_raises(error: type[BaseException]) -> None:
    def modules() -> tuple[nn.Module, nn.Module]:
        raise error("no more modules")

    found = explained(InvariantViolation("it is wrong"), modules, lambda module: True)
    assert str(found) == "it is wrong"


class Uncopied(nn.Linear):
    """A projection that ends the process where it is copied."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Uncopied:
        raise SystemExit("no copies of me")


def test_passing_checks_of_what_is_kept_copy_no_module() -> None:
    spec = LayerSpec(name="uncopied", make=lambda size: Uncopied(size, size))
    names = ["changed_parameters_are_used", "layer_calls_leave_no_trace"]
    assert attnbench.check(spec, profile="quick", invariants=names).ok
    module = Uncopied(2, 2)
    assert copied(module, module) is module


class Counting(nn.Linear):
    """A projection to which each call adds the number of calls before it."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(hidden) + self.calls


def test_a_buffer_that_makes_the_second_of_two_equal_calls_another_is_named() -> None:
    spec = LayerSpec(name="counting", make=Counting)
    report = attnbench.check(spec, profile="quick", invariants=["keeps_the_contract"])
    line = r"an earlier call is kept in calls \(test_kept_values.py:\d+: self.calls \+= 1\)"
    assert re.search(line, report.outcomes[0].reason)
