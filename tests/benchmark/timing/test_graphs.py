"""Replayed graphs: what is timed there is checked too. A stand-in makes the calls of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbench import adapters
from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.measure import Bench, measure_row
from attnbench.benchmark.timing import graphs
from attnbench.benchmark.timing.clocks import GRAPH_CLOCK
from attnbench.benchmark.timing.contract import Contract
from attnbench.cases.case import Case
from attnbench.subject.lookup import resolve

CASE = Case((1, 2), 128, 128, 32, 32, 32)
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def captured(
    calls: Sequence[Callable[[], Any]], kept: int, device: torch.device
) -> tuple[Callable[[], None], Any]:
    """A graph that a processor replays: it makes its calls again, and writes to the same output."""
    outputs = [call() for call in calls]

    def replay() -> None:
        for number, call in enumerate(calls):
            output = call()
            if number == kept:
                pairs = zip(*map(list_of, (outputs[kept], output)), strict=True)
                for old, new in pairs:
                    old.copy_(new)

    return replay, outputs[kept]


def list_of(output: Any) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else [t for t in output if t is not None]


def row(
    call: Attention, monkeypatch: pytest.MonkeyPatch, direction: str = "forward"
) -> dict[str, Any]:
    monkeypatch.setattr(graphs, "capture", captured)
    (subject,) = resolve(adapters.sdpa(call))
    bench = Bench(Contract(blocks=8, slot_s=2e-3, cap_s=1.0))
    return measure_row(subject, BenchCase(CASE, direction), bench, clock=GRAPH_CLOCK)


@pytest.mark.parametrize("direction", ["forward", "forward_backward"])
def test_the_right_one_is_ranked(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = row(scaled_dot_product_attention, monkeypatch, direction)
    assert (found["status"], found["reason"]) == ("ok", "")
    assert found["clock"] == GRAPH_CLOCK


def test_replays_that_stop_being_right_are_not_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def drifting(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        calls.append(0)
        right = scaled_dot_product_attention(query, key, value)
        return right if len(calls) < 60 else torch.zeros_like(right)

    found = row(drifting, monkeypatch)
    assert found["status"] == "unverified"
    assert "a timed call" in found["reason"]


def test_a_replay_that_repeats_an_old_result_is_not_ranked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The inputs of a replay have other values each time, where they are."""
    memo: dict[Any, Tensor] = {}

    def remembering(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        place = tuple((t.data_ptr(), t.dtype, t.shape) for t in (query, key, value))
        return memo.setdefault(place, scaled_dot_product_attention(query, key, value)).clone()

    found = row(remembering, monkeypatch)
    assert found["status"] == "unverified"
    assert "a timed call" in found["reason"]
