"""Attention that is fast only for a benchmark: none is ranked, and the right one is."""

from __future__ import annotations

import gc
import math
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import attnbench
from attnbench import adapters
from attnbench.benchmark.agreement import Agreement
from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.measure import measure_rows
from attnbench.benchmark.records import Record
from attnbench.benchmark.session import Job
from attnbench.benchmark.timing import clocks, switches
from attnbench.benchmark.timing.contract import Contract
from attnbench.benchmark.timing.slots import Timer
from attnbench.calling.suite_guard import SuiteGuard
from attnbench.cases.case import Case
from attnbench.registry.address import parse_address
from attnbench.specs import Invariant
from attnbench.subject.lookup import resolve
from tests.attention_functions import with_gradient
from tests.benchmark.cheats import CHEATS, Attention, made_by, remembering_addresses, right
from tests.measured_records import measure

QUICK = Contract(blocks=2, slot_s=2e-3, cap_s=0.2)
CASE = BenchCase(Case((1, 2), 128, 128, 32, 32, 32))


@pytest.fixture(autouse=True)
def _the_suite_is_put_back() -> Iterator[None]:
    """Undo what some of the cheats do to the process, in which other tests follow."""
    attnbench.subjects()
    kept = [(thing, thing.check) for thing in gc.get_objects() if type(thing) is Invariant]
    agrees, change, where = Agreement.agrees, SuiteGuard.change, torch.where
    yield
    for thing, check in kept:
        object.__setattr__(thing, "check", check)
    Agreement.agrees, SuiteGuard.change = agrees, change
    torch.where = where


def row(call: Attention, direction: str = "forward") -> Record:
    (subject,) = resolve(adapters.sdpa(call))
    case = BenchCase(CASE.case, direction)
    return measure(subject, case, QUICK)


def test_switches_of_torch_that_a_call_leaves_turned_are_put_back_for_others() -> None:
    seen = set()

    def turning(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seen.add(torch.backends.cuda.flash_sdp_enabled())
        output = right(query, key, value)
        torch.backends.cuda.enable_flash_sdp(False)
        return output

    timer = Timer(lambda: turning(*(torch.ones(4, 4),) * 3), torch.device("cpu"), Contract())
    seen.clear()
    timer.slot()
    assert True in seen
    switches.put_back()
    assert torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize(("make", "reason"), CHEATS.items())
def test_a_cheat_is_not_ranked_and_the_reason_names_the_trick(
    make: Callable[[], Attention], reason: str
) -> None:
    record = row(make())
    assert record.status == "unverified"
    assert reason in record.reason
    assert record.ratio is None


PATCHES = {
    "Agreement.agrees": "Agreement.agrees = property(lambda self: True)",
    "torch.where": "torch.where = lambda condition, *_: torch.zeros(condition.shape)",
    "a clock": "clocks.process_time_ns = lambda: 0",
    "a comparison": "SuiteGuard.change = lambda self: None; "
    "Agreement.agrees = property(lambda self: True)",
}


@pytest.mark.parametrize("patch", PATCHES.values(), ids=PATCHES)
def test_code_that_patches_a_benchmark_is_not_ranked_nor_is_what_follows(
    patch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clocks, "process_time_ns", time.process_time_ns)  # put back afterwards
    file = tmp_path / "patching.py"
    file.write_text(
        "import torch\n"
        "from attnbench.benchmark.agreement import Agreement\n"
        "from attnbench.benchmark.timing import clocks\n"
        "from attnbench.calling.suite_guard import SuiteGuard\n"
        "def zeros(query, key, value):\n"
        f"    {patch}\n"
        "    return torch.zeros_like(query)\n"
    )
    jobs = [Job(parse_address(f"{file}:zeros as sdpa"), CASE)] * 2
    (found,) = measure_rows(jobs, QUICK, seed=0)
    assert found["status"] == "crashed"
    assert "changed the suite" in found["reason"]


def test_what_is_remembered_by_address_is_wrong_or_no_gain() -> None:
    """Where the inputs move, it is computed anew; where they stay, they hold other values."""
    records = [row(remembering_addresses()) for _ in range(3)]  # other work may slow one side
    times = [1.0 if one.status == "unverified" else one.ratio or 0.0 for one in records]
    assert statistics.median(times) > 0.5


def test_scores_that_are_wrong_in_every_dtype_once_they_are_timed_are_not_ranked() -> None:
    """Then the reference in float64 is wrong as well, and the one in Python floats is not."""
    timed = []

    class Scoring(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            if made_by("_made"):
                timed.append(0)
            return query @ key.mT * (not timed)

    def reference(module: Any, q: list[float], k: list[float]) -> float:
        return math.fsum(a * b for a, b in zip(q, k, strict=True))

    spec = attnbench.ScoringSpec(
        name="drifting", make=lambda *sizes: Scoring(), reference=reference, equal_sizes=True
    )
    (subject,) = resolve(spec)
    record = measure(subject, CASE, QUICK)
    assert record.status == "unverified"
    assert "the output of a timed call is off" in record.reason


@pytest.mark.parametrize("place", [0, 1, 2], ids=["query", "key", "value"])
def test_each_gradient_of_a_timed_call_is_compared(place: int) -> None:
    """An upstream gradient of ones, as that of timed calls, gives one wrong, always the same."""
    of_ones: list[bool] = []

    def seen(gradient: Tensor) -> Tensor:
        of_ones[:] = [bool((gradient == 1).all())]
        return gradient

    lost = with_gradient(lambda gradient: gradient * (not of_ones[0]))

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        tensors = [query, key, value]
        if query.dtype == torch.float64:
            return right(*tensors)
        tensors[place] = lost(tensors[place])
        return with_gradient(seen)(right(*tensors))

    record = row(call, "forward_backward")
    assert record.status == "unverified"
    assert "a gradient of a timed call is off" in record.reason


def test_what_is_remembered_by_content_is_never_met_again() -> None:
    """Only verification repeats a call: however long it is timed, each call is a new one."""
    memo: dict[bytes, Tensor] = {}
    again = 0

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        nonlocal again
        content = b"".join(t.numpy().tobytes() for t in (query, key, value))
        if content in memo:
            again += 1
        else:
            memo[content] = right(query, key, value)
        return memo[content].clone()

    (subject,) = resolve(adapters.sdpa(call))
    record = measure(subject, CASE, replace(QUICK, blocks=4))
    assert 0 < again < len(memo)
    assert record.ratio is not None
    assert record.ratio > 0.5


def test_a_call_faster_than_the_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the candidate had stopped the clock."""
    monkeypatch.setattr(clocks, "process_time_ns", lambda: 0)
    record = row(right)
    assert record.status == "unverified"
    assert "this machine needs at least" in record.reason


def test_replacing_the_clocks_of_the_time_module_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("process_time_ns", "perf_counter_ns", "thread_time_ns"):
        monkeypatch.setattr(time, name, lambda: 0)
    record = row(right)
    assert record.status == "ok", record.reason
    assert record.time_s is not None
    assert record.time_s > 1e-6


def test_the_work_of_another_process_is_refused(request: pytest.FixtureRequest) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if not started:
            started.append(subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]))
            request.addfinalizer(started[0].wait)
            request.addfinalizer(started[0].kill)  # the last that is added runs first
        return right(query, key, value)

    (subject,) = resolve(adapters.sdpa(call))
    record = measure(subject, CASE, Contract(blocks=300, slot_s=4e-3, cap_s=2.0))
    assert record.status == "unverified"
    assert "processes that it started computed" in record.reason


def test_the_work_of_another_thread_counts() -> None:
    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if query.dtype == torch.float64:
            return right(query, key, value)
        found: list[Tensor] = []

        def work() -> None:
            with torch.no_grad():
                for _ in range(20):
                    found[:] = [right(query, key, value)]

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return found[0]

    (alone, other) = row(right), row(call)
    assert alone.time_s is not None
    assert other.time_s is not None
    assert other.time_s > 4 * alone.time_s
