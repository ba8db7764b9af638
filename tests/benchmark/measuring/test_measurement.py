import itertools
import math
import platform
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Never

import pytest
import torch
from torch import nn

import attnbench
from attnbench.benchmark.measuring import clock, measurement
from attnbench.benchmark.measuring.agreement import ROWS, agreement
from attnbench.benchmark.measuring.contract import Contract
from attnbench.benchmark.measuring.gradient_agreement import gradient_ratio
from attnbench.benchmark.measuring.quiet import Reading, idle
from attnbench.benchmark.workloads import BenchCase, workload
from attnbench.cases.case import Case
from attnbench.subject.lookup import resolve

CPU = torch.device("cpu")
QUICK = Contract(target=1.0, min_samples=3, min_s=0.0, cap_s=0.2)
SMALL = BenchCase(Case((2, 2), 8, 8, 4, 4, 4))
ALWAYS = Reading(math.inf, math.inf)


@pytest.fixture(autouse=True)
def _quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentinels that always read the same, so that no test depends on how busy the machine is."""
    monkeypatch.setattr(
        "attnbench.benchmark.measuring.measurement.Sentinel.read", lambda self: Reading(0.01, 0.001)
    )


def subject_of(forward: Any, **more: Any) -> Any:
    class Scoring(nn.Module):
        def forward(self, query: Any, key: Any) -> Any:
            return forward(query, key)

    spec = attnbench.ScoringSpec(name="under_test", make=lambda q, k: Scoring(), **more)
    (subject,) = resolve(spec)
    return subject


def dot(query: Any, key: Any) -> Any:
    return query @ key.mT / 2


@pytest.mark.parametrize("direction", ["forward", "forward_backward"])
@pytest.mark.parametrize("name", ["scaled_dot", "additive", "local_monotonic"])
def test_a_right_subject_is_ok_and_every_number_is_there(name: Any, direction: Any) -> None:
    (subject,) = resolve(name)
    case = BenchCase(SMALL.case, direction)
    record = measurement.measure(subject, case, QUICK)
    assert (record.status, record.reason) == ("ok", "")
    assert (record.subject, record.case, record.direction) == (name, case.id, direction)
    assert record.contract == QUICK.name(direction, "cpu")
    assert 0 < record.time_q1_s <= record.time_s <= record.time_q3_s
    assert len(record.samples_s) >= 3
    assert record.first_call_s > 0
    assert record.peak_bytes > 2 * 2 * 8 * 8 * 4
    assert record.error_ratio <= 1
    assert record.error_rows == 2 * 2 * 8
    assert record.operations > record.matmul_operations > 0
    assert record.bandwidth_share > 0
    assert record.sentinel["bandwidth_bytes_per_s"] > 0
    assert record.device_name
    assert record.measuring_s > 0 < record.overhead_s


def test_a_subject_that_is_not_its_reference_is_measured_and_not_ranked() -> None:
    def reference(module: Any, q: Any, k: Any) -> Any:
        return math.fsum(a * b for a, b in zip(q, k, strict=True)) / 2

    record = measurement.measure(
        subject_of(lambda q, k: dot(q, k) * 1.001, reference=reference), SMALL, QUICK
    )
    assert record.status == "unverified"
    assert record.error_ratio > 1
    assert record.time_s > 0
    assert "attnbench check under_test" in record.reason
    right = measurement.measure(subject_of(dot, reference=reference), SMALL, QUICK)
    assert right.status == "ok"


def test_the_command_that_says_more_finds_a_subject_of_a_file_too(tmp_path: Path) -> None:
    file = tmp_path / "my scores.py"
    file.write_text(
        "import attnbench, torch\n"
        "class Far(torch.nn.Module):\n"
        "    def forward(self, query, key):\n"
        "        scores = query @ key.mT\n"
        "        return scores * (1 if query.dtype == torch.float64 else 2)\n"
        "FAR = attnbench.ScoringSpec(name='far', make=lambda q, k: Far(), equal_sizes=True)\n"
    )
    (subject,) = resolve(f"{file}:FAR")
    record = measurement.measure(subject, SMALL, QUICK)
    assert record.status == "unverified"
    assert record.reason.endswith(f"see: attnbench check '{file}:FAR'")


def test_a_subject_that_rounds_on_its_way_is_not_ranked() -> None:
    def rounds(query: Any, key: Any) -> Any:
        scores = dot(query, key)
        return scores.half().to(scores.dtype) if scores.dtype == torch.float32 else scores

    assert measurement.measure(subject_of(rounds), SMALL, QUICK).status == "unverified"


def test_a_subject_that_returns_nan_is_unverified() -> None:
    record = measurement.measure(subject_of(lambda q, k: dot(q, k) * math.nan), SMALL, QUICK)
    assert record.status == "unverified"


def test_a_subject_that_raises_has_failed_and_says_how() -> None:
    def broken(query: Any, key: Any) -> Never:
        raise ValueError("no such thing")

    record = measurement.measure(subject_of(broken), SMALL, QUICK)
    assert (record.status, record.reason) == ("failed", "ValueError: no such thing")
    assert record.time_s is None


def test_a_case_that_does_not_fit_in_memory_is_recorded_as_such() -> None:
    record = measurement.measure(
        subject_of(lambda q, k: dot(q, k) + torch.empty(2**50).sum()), SMALL, QUICK
    )
    assert record.status == "out_of_memory"
    assert "memory" in record.reason


def test_a_case_that_a_subject_does_not_take_is_unsupported_and_never_run() -> None:
    def never(query: Any, key: Any) -> Never:
        raise AssertionError("it was run")

    subject = subject_of(never, dtypes=("float64",))
    record = measurement.measure(subject, SMALL, QUICK)
    assert (record.status, record.reason) == ("unsupported", "it supports float64")


def test_a_busy_machine_makes_a_measurement_void() -> None:
    record = measurement.measure(subject_of(dot), SMALL, QUICK, quiet=Reading(0.005, 0.001))
    assert record.status == "void"
    assert "100.0% off" in record.reason
    assert record.time_s > 0
    quiet = measurement.measure(subject_of(dot), SMALL, QUICK, quiet=Reading(0.0095, 0.00105))
    assert quiet.status == "ok"


def test_shares_are_of_the_ceilings_that_the_sentinels_read() -> None:
    record = measurement.measure(subject_of(dot), SMALL, QUICK, quiet=Reading(0.01, 0.001))
    rate = record.moved_bytes / record.time_s / record.sentinel["bandwidth_bytes_per_s"]
    assert record.bandwidth_share == pytest.approx(rate)


def test_the_number_of_threads_and_the_random_generator_are_left_as_they_were() -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    measurement.measure(subject_of(dot), SMALL, Contract(threads=threads + 1, cap_s=0.01))
    assert torch.get_num_threads() == threads
    assert torch.rand(4).equal(expected)


@pytest.mark.parametrize("mask", ["none", "padding", "causal", "floating", "lengths_2d"])
@pytest.mark.parametrize("name", ["scaled_dot", "additive", "soft"])
def test_agreement_holds_a_part_of_a_large_case_against_the_reference(name: Any, mask: Any) -> None:
    (subject,) = resolve(name)
    module, inputs = subject.build(Case((3, 4), 40, 50, 8, 8, 8, mask=mask))
    output = subject.output(module, inputs)
    found = agreement(subject, module, inputs, output)
    assert found.agrees
    assert 40 <= found.rows <= 2 * ROWS
    last = output.clone()
    last[-1, -1, -1, -1] += 0.01
    assert not agreement(subject, module, inputs, last).agrees


def test_agreement_meets_grouped_heads_with_the_keys_that_they_share() -> None:
    (subject,) = resolve("scaled_dot")
    case = workload("llama3_8b_decode")
    case = BenchCase(case.case.replace(kv_len=64), kv_heads=case.kv_heads)
    module, inputs = case.build(subject)
    output = subject.output(module, inputs)
    assert agreement(subject, module, inputs, output).agrees
    assert not agreement(subject, module, inputs, output.flip(1)).agrees


@pytest.mark.parametrize("mask", ["none", "padding", "causal", "floating"])
@pytest.mark.parametrize("name", ["additive/factorised", "vector_sum/one_row", "soft", "hard"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_a_right_subject_agree(name: Any, mask: Any, dtype: Any) -> None:
    (subject,) = resolve(name)
    case = subject.legal(Case((3, 2), 40, 50, 8, 8, 8, mask=mask, dtype=dtype))
    assert gradient_ratio(subject, *subject.build(case)) <= 1.0


def test_gradients_of_grouped_heads_go_to_the_keys_that_they_share() -> None:
    (subject,) = resolve("additive/factorised")
    case = workload("llama3_8b_decode")
    case = BenchCase(case.case.replace(kv_len=64), kv_heads=case.kv_heads)
    assert gradient_ratio(subject, *case.build(subject)) <= 1.0


class Wrong(torch.autograd.Function):
    """A right output whose gradient is off by a hundredth."""

    @staticmethod
    def forward(ctx: Any, tensor: Any) -> Any:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient * 1.01


def test_a_subject_whose_gradients_are_wrong_is_unverified_in_that_direction_only() -> None:
    def forward(query: Any, key: Any) -> Any:
        return query @ (key if query.dtype == torch.float64 else Wrong.apply(key)).mT / 2

    subject = subject_of(forward)
    assert gradient_ratio(subject, *SMALL.build(subject)) > 100
    right = subject_of(dot)
    assert gradient_ratio(right, *SMALL.build(right)) <= 1.0
    for direction, status in (("forward", "ok"), ("forward_backward", "unverified")):
        record = measurement.measure(subject, replace(SMALL, direction=direction), QUICK)
        assert record.status == status
    assert "gradients are off" in record.reason


def test_an_output_of_another_shape_does_not_agree() -> None:
    (subject,) = resolve("scaled_dot")
    module, inputs = subject.build(SMALL.case)
    output = subject.output(module, inputs)
    assert agreement(subject, module, inputs, output[..., :1, :]).ratio == math.inf


def test_sampling_goes_on_until_the_median_is_known_or_the_time_is_up() -> None:
    calls = []
    known = clock.sample(lambda: calls.append(0), CPU, Contract(target=0.5, min_s=0.0))
    assert len(known.samples_s) >= 7
    assert known.calls > 100  # a call so short is repeated within a sample
    never = clock.sample(lambda: None, CPU, Contract(target=0.0, cap_s=0.05, sample_s=1e-4))
    assert sum(never.samples_s) * never.calls < 0.5


def test_an_interruption_while_calls_are_counted_makes_no_sample_too_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = itertools.chain([0.004], itertools.repeat(1e-4))  # the first try is interrupted
    monkeypatch.setattr(clock, "_on_cpu", lambda call, calls, device, flush: [next(times)])
    found = clock.sample(lambda: None, CPU, Contract(target=1.0, cap_s=0.05))
    assert found.calls * 1e-4 >= 0.001


FAULTS = """
import resource
import sys

import torch

from attnbench.benchmark.measuring import clock
from attnbench.benchmark.measuring.contract import Contract


def call():
    return [torch.ones(19 * 2**18) for _ in range(3)]  # 19 MiB each: imports free none so large


contract = Contract(target=1.0, min_samples=3, min_s=0.0, cap_s=0.01)
if sys.argv[1] == "sampled":
    clock.sample(call, torch.device("cpu"), contract)
for _ in range(3):
    call()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    call()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's allocator")
def test_memory_that_a_call_has_freed_is_there_for_the_next_while_it_is_sampled() -> None:
    def faults(how: Any) -> Any:
        command = [sys.executable, "-c", FAULTS, how]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    assert faults("as it is") > 5000  # 10 calls touch 145,920 pages
    assert faults("sampled") < 500


def test_a_cold_sample_is_one_call_and_the_cache_is_flushed_outside_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []

    def tick() -> int:
        events.append("clock")
        return len(events)

    monkeypatch.setattr(clock, "_flusher", lambda device: lambda: events.append("flush"))
    monkeypatch.setattr("time.perf_counter_ns", tick)
    cold = Contract(cache="cold", target=1.0, min_samples=3, min_s=0.0)
    found = clock.sample(lambda: events.append("call"), CPU, cold)
    assert found.calls == 1
    assert events[:8] == ["flush", "clock", "call", "clock"] * 2


def test_the_relative_error_of_a_median_falls_with_the_root_of_the_samples() -> None:
    few = [1.0, 1.1, 1.2, 1.3, 1.4] * 4
    assert clock.relative_error(few * 4) == pytest.approx(clock.relative_error(few) / 2)
    assert clock.relative_error([1.0] * 10) == 0
    assert clock.relative_error([1.0, 2.0]) == math.inf


def test_the_relative_error_is_that_of_medians_of_normal_samples() -> None:
    generator = torch.Generator().manual_seed(0)
    draws = 1 + 0.1 * torch.randn(2000, 101, generator=generator, dtype=torch.float64)
    spread = float(draws.median(dim=1).values.std())
    estimates = [clock.relative_error(row) for row in draws[:200].tolist()]
    assert sum(estimates) / 200 == pytest.approx(spread, rel=0.05)


def test_the_idle_reading_is_of_the_faster_half() -> None:
    readings = [Reading(t, 2 * t) for t in (1.0, 1.1, 5.0, 9.0)]
    assert idle(readings) == Reading(1.05, 2.1)
    assert Reading(1.0, 2.0).off(Reading(1.0, 1.6)) == pytest.approx(0.25)
    assert Reading(1.0, 0.8).off(Reading(1.0, 1.0)) == pytest.approx(0.2)
    assert Reading(1.5, 2.0).off(Reading(1.0, 2.0)) == pytest.approx(0.5)
    assert Reading(0.5, 2.0).off(Reading(1.0, 2.0)) == 0.0
