"""Measuring on an accelerator, with stand-ins for its events, its libraries and its clocks."""

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attnbench.benchmark.timed_calls import Step
from attnbench.benchmark.timing import slots
from attnbench.benchmark.timing.clocks import EVENT_CLOCK, GRAPH_CLOCK
from attnbench.benchmark.timing.contract import Contract
from attnbench.errors import RefusalError, UsageError

GPU = torch.device("cuda", 0)


class Clock:
    """A device whose time passes only when a call is made on it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls = 0

    def call(self) -> None:
        self.calls += 1
        self.now += 0.001

    def event(self, *_: Any, **__: Any) -> Any:
        clock = self

        class Event:
            at = 0.0

            def record(self) -> None:
                self.at = clock.now

            def elapsed_time(self, other: Any) -> float:
                return float(other.at - self.at) * 1e3

        return Event()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    stand_in = Clock()
    monkeypatch.setattr(torch, "Event", stand_in.event)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)
    monkeypatch.setattr(slots, "perf_counter", lambda: stand_in.now)
    return stand_in


def test_events_are_the_clock_and_half_a_second_of_calls_comes_before_the_first_reading(
    clock: Clock,
) -> None:
    timer = slots.Timer(clock.call, GPU, Contract())
    assert timer.clock == EVENT_CLOCK
    assert clock.now >= slots.WARM_UP_S
    assert timer.calls == 4
    before = clock.calls
    assert timer.slot().seconds == pytest.approx(0.001)
    assert clock.calls == before + 4


class Graphs:
    """Stands in for CUDA graphs on the clock: a replay takes a third of what the calls took."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.sizes: list[int] = []
        self.replays = 0
        self._before = (0, 0.0)

    def stream(self, *_: Any) -> Any:
        return types.SimpleNamespace(wait_stream=lambda other: None)

    def made(self) -> Any:
        graph = types.SimpleNamespace(replay=None)

        def replay() -> None:
            self.replays += 1
            self.clock.now += graph.seconds / 3

        graph.replay = replay
        return graph

    @contextlib.contextmanager
    def capture(self, graph: Any) -> Iterator[None]:
        calls, since = self.clock.calls, self.clock.now
        yield
        graph.seconds, self.clock.now = self.clock.now - since, since
        self.sizes.append(self.clock.calls - calls)


@pytest.fixture
def graphs(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Graphs:
    found = Graphs(clock)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, found.stream)
    for name in ("device", "stream"):
        monkeypatch.setattr(torch.cuda, name, lambda given: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", found.made)
    monkeypatch.setattr(torch.cuda, "graph", found.capture)
    return found


def test_the_device_timing_replays_a_graph_of_a_slots_calls(clock: Clock, graphs: Graphs) -> None:
    timer = slots.Timer(clock.call, GPU, Contract(timing="device"))
    assert timer.clock == GRAPH_CLOCK
    assert graphs.sizes == [4]
    assert timer.calls == 12
    made, replays = clock.calls, graphs.replays
    assert timer.slot().seconds == pytest.approx(0.001 / 3)
    assert clock.calls == made, "a slot makes no call from Python"
    assert graphs.replays == replays + 3


def test_what_a_graph_cannot_capture_is_refused_with_a_reason(
    clock: Clock, graphs: Graphs, monkeypatch: pytest.MonkeyPatch
) -> None:
    capturing = []

    @contextlib.contextmanager
    def capture(graph: Any) -> Iterator[None]:
        capturing.append(graph)
        yield

    def waits() -> None:
        clock.call()
        if capturing:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(torch.cuda, "graph", capture)
    told = r"not permitted when stream is capturing\); measure it with '--timing call'"
    with pytest.raises(RefusalError, match=told):
        slots.Timer(waits, GPU, Contract(timing="device"))


def test_a_call_that_appends_to_a_cache_is_refused_by_a_graph(clock: Clock, graphs: Graphs) -> None:
    class Appending:
        appends = Step.appends

        def __call__(self) -> None:
            clock.call()

    with pytest.raises(RefusalError, match="appends to a cache"):
        slots.Timer(Appending(), GPU, Contract(timing="device"))
    assert not graphs.sizes


def test_the_two_timings_are_two_contracts_on_a_cuda_device_and_one_elsewhere() -> None:
    call, device = Contract(), Contract(timing="device")
    assert call.name("forward", "cuda:0") != device.name("forward", "cuda:0")
    assert "replayed graph" in device.name("forward", "cuda")
    for name in ("cpu", "xpu:0"):
        assert call.name("forward", name) == device.name("forward", name)
        assert device.timing_on(name) == "call"
    with pytest.raises(UsageError, match="no timing is called 'graph'"):
        Contract(timing="graph")


def test_a_graph_has_no_cold_cache() -> None:
    with pytest.raises(UsageError, match="a replayed graph is timed with a warm cache"):
        Contract(timing="device", cache="cold")
