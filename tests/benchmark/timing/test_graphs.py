"""Device events and replayed graphs, on a stand-in of a device: what is timed is checked too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbench import adapters
from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.measure import Bench, measure_row
from attnbench.benchmark.timed_calls import Step
from attnbench.benchmark.timing import graphs, slots
from attnbench.benchmark.timing.clocks import EVENT_CLOCK, GRAPH_CLOCK
from attnbench.benchmark.timing.contract import Contract
from attnbench.benchmark.timing.graphs import capture
from attnbench.benchmark.timing.rotation import FreshCall
from attnbench.cases.case import Case
from attnbench.errors import RefusalError, UsageError
from attnbench.subject.lookup import resolve

GPU = torch.device("cuda", 0)
CASE = Case((1, 2), 128, 128, 32, 32, 32)
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class Device:
    """A device whose time passes only when a call is made on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls = 0

    def call(self) -> None:
        self.calls += 1
        self.now += 0.001

    def event(self, *_: Any, **__: Any) -> Any:
        device = self

        class Event:
            at = 0.0

            def record(self) -> None:
                self.at = device.now

            def elapsed_time(self, other: Any) -> float:
                return float(other.at - self.at) * 1e3

        return Event()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    stand_in = Device()
    monkeypatch.setattr(torch, "Event", stand_in.event)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)
    monkeypatch.setattr(slots, "perf_counter", lambda: stand_in.now)
    monkeypatch.setattr(graphs, "capture", captured)
    return stand_in


def captured(calls: Any, kept: int, device: torch.device) -> tuple[Callable[[], None], Any]:
    """A graph that a processor replays: it makes its calls again, and writes to the same output."""
    outputs = [call() for call in calls]

    def replay() -> None:
        again = [call() for call in calls]
        if again[kept] is not None:
            for old, new in zip(*map(list_of, (outputs[kept], again[kept])), strict=True):
                old.copy_(new)

    return replay, outputs[kept]


def list_of(output: Any) -> list[Tensor]:
    return [output] if isinstance(output, Tensor) else [t for t in output if t is not None]


def test_events_are_the_clock_and_half_a_second_of_calls_comes_before_the_first_reading(
    device: Device,
) -> None:
    timer = slots.Timer(device.call, GPU, Contract())
    assert timer.clock == EVENT_CLOCK
    assert device.now >= slots.WARM_UP_S
    assert timer.calls == 4
    before = device.calls
    assert timer.slot().seconds == pytest.approx(0.001)
    assert device.calls == before + 4


def test_the_device_timing_replays_a_graph_of_a_slots_calls(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def quick(calls: Any, kept: int, on: torch.device) -> tuple[Callable[[], None], None]:
        sizes.append(len(calls))

        def replay() -> None:
            device.now += len(calls) * 0.001 / 3

        return replay, None

    monkeypatch.setattr(graphs, "capture", quick)
    timer = slots.Timer(device.call, GPU, Contract(timing="device"))
    assert (timer.clock, timer.calls, sizes) == (GRAPH_CLOCK, 12, [4])
    made = device.calls
    assert timer.slot().seconds == pytest.approx(0.001 / 3)
    assert device.calls == made, "a slot makes no call from Python"


def test_what_a_graph_cannot_capture_is_refused_with_a_reason(device: Device) -> None:
    told = "cannot be captured in a CUDA graph .* measure it with '--timing call'"
    with pytest.raises(RefusalError, match=told):
        capture([device.call], 0, torch.device("cuda", 99))

    class Appending(FreshCall):
        appends = Step.appends

    call = Appending(lambda argument: device.call(), (), list)
    with pytest.raises(RefusalError, match="appends to a cache"):
        slots.Timer(call, GPU, Contract(timing="device"))


def test_the_two_timings_are_two_contracts_on_a_cuda_device_and_one_elsewhere() -> None:
    call, on_device = Contract(), Contract(timing="device")
    assert call.name("forward", "cuda:0") != on_device.name("forward", "cuda:0")
    for name in ("cpu", "xpu:0"):
        assert call.name("forward", name) == on_device.name("forward", name)
    with pytest.raises(UsageError, match="no timing is called 'graph'"):
        Contract(timing="graph")
    with pytest.raises(UsageError, match="a replayed graph is timed with a warm cache"):
        Contract(timing="device", cache="cold")


def row(
    call: Attention, monkeypatch: pytest.MonkeyPatch, direction: str = "forward"
) -> dict[str, Any]:
    monkeypatch.setattr(graphs, "capture", captured)
    (subject,) = resolve(adapters.sdpa(call))
    bench = Bench(Contract(blocks=8, slot_s=2e-3, cap_s=60.0))  # also on a busy machine
    return measure_row(subject, BenchCase(CASE, direction), bench, clock=GRAPH_CLOCK)


@pytest.mark.parametrize("direction", ["forward", "forward_backward"])
def test_the_right_one_is_ranked(direction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = row(scaled_dot_product_attention, monkeypatch, direction)
    assert (found["status"], found["reason"]) == ("ok", "")
    assert found["clock"] == GRAPH_CLOCK


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
