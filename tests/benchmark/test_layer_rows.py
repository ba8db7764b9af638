"""Layers in a benchmark: prefill and decode, and what a layer that does not fit is told."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench.benchmark.records import Record
from attnbench.benchmark.timed_calls import Step, StepInputs, measured_call
from attnbench.benchmark.timing.contract import Contract
from attnbench.benchmark.workloads import layer_case
from attnbench.subject.lookup import resolve
from tests.invariant_runs import zoo
from tests.measured_records import measure

QUICK = Contract(blocks=2, slot_s=5e-4, cap_s=60.0)
PREFILL, DECODE = (layer_case(direction, 2, 16) for direction in ("prefill", "decode"))


class Sums(nn.Module):
    """The running mean of projected tokens; its cache is a list, a sum and a counter."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(size, size)

    def forward(self, hidden: Tensor, cache: Any = None) -> Tensor:
        found = self.proj(hidden)
        if cache is None:
            counts = torch.arange(1, hidden.shape[1] + 1)[:, None]
            means: Tensor = found.cumsum(1) / counts
            return means
        outputs = []
        for token in found.unbind(1):
            cache["tokens"].append(token)
            cache["count"] += 1
            outputs.append(torch.stack(cache["tokens"]).sum(0) / cache["count"])
        return torch.stack(outputs, 1)


def new(module: Any, batch_size: int) -> dict[str, Any]:
    return {"tokens": [], "count": torch.zeros((), dtype=torch.int64), "module": module}


def spec(make: Any = Sums, **more: Any) -> attnbench.LayerSpec:
    given: dict[str, Any] = {"accepts": ("cache",), "cache": attnbench.CacheSpec(new=new)}
    return attnbench.LayerSpec(name="mine", make=make, causal=True, **{**given, **more})


def row(of: attnbench.LayerSpec | str, case: Any = DECODE) -> Record:
    (subject,) = resolve(of)
    return measure(subject, case, QUICK)


@pytest.mark.parametrize("case", [PREFILL, DECODE], ids=["prefill", "decode"])
def test_a_layer_has_a_speed_and_is_paired_with_the_layers_baseline(case: Any) -> None:
    record = row("rotary_attention", case)
    assert (record.status, record.baseline) == ("ok", "causal_attention")
    assert record.ratio > 0
    assert record.contract.startswith(f"{case.direction}, warm cache")
    assert record.tokens_per_s == pytest.approx(case.tokens / record.time_s)
    assert case.tokens == (2 if case is DECODE else 32)


@pytest.mark.parametrize(
    ("name", "bytes_"),
    [
        ("causal_attention", 256),  # keys and values of 2 heads of 16 features in 4 bytes
        ("static_attention", 256 * 64 / 16),  # a buffer of 64 slots for 16 tokens
        ("sliding_window_attention", 256 * 8 / 16),
    ],
)
def test_bytes_of_a_cache_are_those_of_its_tensors_over_its_tokens(name: Any, bytes_: Any) -> None:
    assert row(name).cache_bytes_per_token == bytes_
    assert row(name, PREFILL).cache_bytes_per_token is None


def test_every_timed_step_begins_at_the_same_cache() -> None:
    (subject,) = resolve(spec())
    module, inputs = DECODE.build(subject)
    call = measured_call(subject, module, inputs, "decode")
    assert isinstance(call, Step)
    first = call()
    call.prepare(5)
    fresh = [call() for _ in range(5)]
    # the values of a call are drawn, and one window of those is the case's own
    assert sum(output.equal(first) for output in fresh) <= 1
    assert len({tuple(output.flatten().tolist()) for output in fresh}) == 5
    again = [Step(subject, module, call.inputs_of(n)[1])() for n in range(5)]
    assert all(map(torch.equal, fresh, again))
    assert call().equal(first)
    assert isinstance(inputs, StepInputs)
    assert (len(inputs.cache["tokens"]), int(inputs.cache["count"])) == (15, 15)


def test_a_step_that_differs_from_the_whole_sequence_is_not_ranked() -> None:
    forgets = zoo("steps_forget_the_past")
    assert row(forgets, PREFILL).status == "ok"
    record = row(forgets)
    assert (record.status, record.ratio) == ("unverified", None)
    assert "off the float64 reference" in record.reason


@pytest.mark.parametrize(
    ("subject", "case", "reason"),
    [
        ("encoder_attention", DECODE, "it has no cache, so it cannot decode token by token"),
        (
            "static_attention",
            layer_case("decode", 1, 65),
            "its cache holds 64 tokens, and the case has 65",
        ),
        (
            "rotary_attention",
            layer_case("decode", 1, 16, 60),
            "it does not take E = 60; the nearest is 64",
        ),
        ("scaled_dot", DECODE, "it is a scoring, and the case is one of a layer"),
        (spec(dtypes=("float64",)), DECODE, "it supports float64"),
    ],
)
def test_a_case_that_a_layer_does_not_take_says_why(subject: Any, case: Any, reason: Any) -> None:
    record = row(subject, case)
    assert (record.status, record.reason) == ("unsupported", reason)


def test_a_cache_that_cannot_be_made_is_told_in_a_line() -> None:
    def raises(module: Any, batch_size: int) -> None:
        raise ValueError("no room")

    record = row(spec(cache=attnbench.CacheSpec(new=raises)))
    told = "SpecError: new(module, 2) of the cache of mine raised ValueError: no room"
    assert (record.status, record.reason) == ("failed", told)
