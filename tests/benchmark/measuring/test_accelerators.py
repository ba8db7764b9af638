"""Measuring on an accelerator, with stand-ins for its events, its libraries and its clocks."""

import importlib.util
import sys
import time
import types
from typing import Any

import pytest
import torch

from attnbench.benchmark.machine import accelerator, sentinel
from attnbench.benchmark.measuring import slots
from attnbench.benchmark.measuring.contract import EVENT_CLOCK, Contract

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
    monkeypatch.setattr(time, "perf_counter", lambda: stand_in.now)
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


def test_a_slow_call_is_warmed_up_by_one(clock: Clock) -> None:
    def slow() -> None:
        clock.calls += 1
        clock.now += 2.0

    timer = slots.Timer(slow, GPU, Contract())
    assert timer.calls == 1
    assert clock.calls <= 3


def test_the_matrix_product_of_the_ceilings_is_of_random_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[torch.Tensor] = []
    real = torch.mm

    def product(left: torch.Tensor, right: torch.Tensor, **more: Any) -> torch.Tensor:
        given.extend((left, right))
        return real(left, right, **more)

    monkeypatch.setattr(torch, "mm", product)
    sentinel.ceilings(torch.device("cpu"), torch.float32)
    left, right = given[:2]
    assert 0.9 < float(left.std()) < 1.1
    assert not torch.equal(left, right)


def test_nothing_is_said_of_a_cpu() -> None:
    assert accelerator.accelerator_facts(torch.device("cpu")) == {}


def nvml(**more: Any) -> types.ModuleType:
    """A stand-in for ``pynvml``."""
    found = types.ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    content = {
        "NVMLError": NVMLError,
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: b"580.1",
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetClockInfo": lambda handle, clock: 1000 * clock,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0b101,
        "nvmlClocksThrottleReasonGpuIdle": 1,
        "nvmlClocksThrottleReasonSwPowerCap": 4,
        "nvmlClocksThrottleReasonHwSlowdown": 8,
        **more,
    }
    found.__dict__.update(content)
    return found


def facts(monkeypatch: pytest.MonkeyPatch, module: types.ModuleType) -> dict[str, Any]:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: module)
    properties = types.SimpleNamespace(uuid="a1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return accelerator.accelerator_facts(GPU)


def test_driver_clocks_and_throttling_are_read_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    found = facts(monkeypatch, nvml())
    assert found["driver"] == "580.1"
    assert (found["sm_clock_mhz"], found["memory_clock_mhz"]) == (1000, 2000)
    assert found["throttled"] == ["idle", "power cap"]
    assert set(found["tf32"]) == {"matmul", "cudnn"}


def test_what_nvml_cannot_read_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nvml()

    def refused(*_: Any) -> Any:
        raise module.NVMLError

    module.nvmlDeviceGetClockInfo = refused  # type: ignore[attr-defined]
    module.nvmlSystemGetDriverVersion = refused  # type: ignore[attr-defined]
    found = facts(monkeypatch, module)
    assert not {"driver", "sm_clock_mhz"} & set(found)
    assert found["throttled"] == ["idle", "power cap"]
    module.nvmlInit = refused  # type: ignore[attr-defined]
    assert "throttled" not in facts(monkeypatch, module)
