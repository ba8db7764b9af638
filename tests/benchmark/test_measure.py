import itertools
import math
import platform
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import attnbench
from attnbench import adapters
from attnbench.benchmark.agreement import ROWS, agreement
from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.gradient_agreement import gradient_ratio
from attnbench.benchmark.timing import clocks, slots
from attnbench.benchmark.timing.clocks import CPU_CLOCK, WALL_CLOCK
from attnbench.benchmark.timing.contract import Contract
from attnbench.benchmark.workloads import workload
from attnbench.cases.case import Case
from attnbench.subject.lookup import resolve
from tests.attention_functions import with_gradient
from tests.cli_runs import python
from tests.measured_records import measure

CPU = torch.device("cpu")
QUICK = Contract(blocks=3, slot_s=1e-4, cap_s=60.0)  # also on a busy machine
SMALL = BenchCase(Case((2, 2), 8, 8, 4, 4, 4))
WHOLE = workload("llama3_8b_decode")
GROUPED = BenchCase(WHOLE.case.replace(kv_len=64), kv_heads=WHOLE.kv_heads)


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
    record = measure(subject, case, QUICK)
    assert (record.status, record.reason) == ("ok", "")
    assert (record.subject, record.case, record.direction) == (name, case.id, direction)
    assert record.contract == QUICK.name(direction, "cpu")
    assert record.time_s > 0
    assert len(record.samples_s) == 2 * QUICK.blocks
    assert record.baseline == "scaled_dot"
    assert record.ratio_low <= record.ratio <= record.ratio_high
    assert record.first_call_s > 0
    assert record.peak_bytes > 2 * 2 * 8 * 8 * 4
    assert record.error_ratio <= 1
    assert record.error_rows == 2 * 2 * 8
    assert record.load["cores"] >= 1
    assert record.sentinel["bandwidth_bytes_per_s"] > 0
    assert record.device_name


def test_a_subject_that_is_not_its_reference_is_measured_and_not_ranked() -> None:
    def reference(module: Any, q: Any, k: Any) -> Any:
        return math.fsum(a * b for a, b in zip(q, k, strict=True)) / 2

    record = measure(subject_of(lambda q, k: dot(q, k) * 1.001, reference=reference), SMALL, QUICK)
    assert record.status == "unverified"
    assert record.error_ratio > 1
    assert record.time_s > 0
    assert "attnbench check under_test" in record.reason
    right = measure(subject_of(dot, reference=reference), SMALL, QUICK)
    assert right.status == "ok"


def test_a_subject_that_returns_nan_is_unverified() -> None:
    record = measure(subject_of(lambda q, k: dot(q, k) * math.nan), SMALL, QUICK)
    assert record.status == "unverified"


def test_the_number_of_threads_and_the_random_generator_are_left_as_they_were() -> None:
    threads = torch.get_num_threads()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    measure(subject_of(dot), SMALL, Contract(threads=threads + 1, blocks=1, slot_s=1e-4))
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
    module, inputs = GROUPED.build(subject)
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


def sloped(query: Any, key: Any, value: Any, attn_mask: Any = None) -> Any:
    """Each head has a slope of its own, by its place."""
    heads, (rows, slots) = query.shape[1], (query.shape[-2], key.shape[-2])
    place = torch.arange(slots) - torch.arange(rows).unsqueeze(-1)
    bias = -torch.arange(1, heads + 1).reshape(heads, 1, 1) * place.abs() / heads
    scores = query @ key.mT / query.shape[-1] ** 0.5 + bias
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    return scores.softmax(-1) @ value


@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
def test_parameters_by_head_are_compared_with_all_heads_together(mask: Any) -> None:
    conventions = {"per_head": True, "positions": "absolute", "masks": ("boolean",)}
    (subject,) = resolve(adapters.sdpa(sloped, reference=None, conventions=conventions))
    module, inputs = subject.build(Case((3, 4), 40, 40, 8, 8, 8, mask=mask))
    output = subject.output(module, inputs)
    assert agreement(subject, module, inputs, output).agrees
    assert not agreement(subject, module, inputs, output.flip(1)).agrees
    assert gradient_ratio(subject, module, inputs) <= 1.0


def test_gradients_of_grouped_heads_go_to_the_keys_that_they_share() -> None:
    (subject,) = resolve("additive/factorised")
    assert gradient_ratio(subject, *GROUPED.build(subject)) <= 1.0


def test_a_subject_whose_gradients_are_wrong_is_unverified_in_that_direction_only() -> None:
    wrong = with_gradient(lambda gradient: gradient * 1.01)

    def forward(query: Any, key: Any) -> Any:
        return query @ (key if query.dtype == torch.float64 else wrong(key)).mT / 2

    subject = subject_of(forward)
    assert gradient_ratio(subject, *SMALL.build(subject)) > 100
    right = subject_of(dot)
    assert gradient_ratio(right, *SMALL.build(right)) <= 1.0
    for direction, status in (("forward", "ok"), ("forward_backward", "unverified")):
        record = measure(subject, replace(SMALL, direction=direction), QUICK)
        assert record.status == status
    assert "gradients differ from those of float64" in record.reason


def test_an_output_of_another_shape_does_not_agree() -> None:
    (subject,) = resolve("scaled_dot")
    module, inputs = subject.build(SMALL.case)
    output = subject.output(module, inputs)
    assert agreement(subject, module, inputs, output[..., :1, :]).ratio == math.inf


def timer(call: Any, **more: Any) -> Any:
    return slots.Timer(call, CPU, Contract(**{"slot_s": 1e-3, **more}))


def test_a_call_so_short_is_repeated_within_a_slot() -> None:
    calls = []
    found = timer(lambda: calls.append(0))
    assert found.calls > 100
    before = len(calls)
    found.slot()
    assert len(calls) - before == found.calls


def test_an_interruption_while_calls_are_counted_makes_no_slot_too_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = itertools.chain([0.004], itertools.repeat(1e-4))  # the first try is interrupted
    monkeypatch.setattr(slots.Timer, "_tried", lambda self, calls: next(times))
    found = timer(lambda: None)
    assert found.calls * 1e-4 >= 0.0009


def test_what_computes_is_timed_by_the_cpu_and_what_waits_by_the_wall_clock() -> None:
    x = torch.ones(64, 64)
    # on a busy machine it waits for the processor now and then
    assert any(timer(lambda: x @ x).clock == CPU_CLOCK for _ in range(20))
    assert timer(lambda: time.sleep(1e-4)).clock == WALL_CLOCK
    assert timer(lambda: x @ x, threads=2).clock == WALL_CLOCK

    def elsewhere() -> Any:
        thread = threading.Thread(target=lambda: [x @ x for _ in range(50)])
        thread.start()
        thread.join()

    assert timer(elsewhere).clock == WALL_CLOCK
    names = {Contract().name("forward", "cpu", clock) for clock in (CPU_CLOCK, WALL_CLOCK)}
    assert len(names) == 2


FAULTS = """
import resource
import sys

import torch

from attnbench.benchmark.timing import slots


def call():
    return [torch.ones(19 * 2**18) for _ in range(3)]  # 19 MiB each: imports free none so large


with slots.settled(torch.device("cpu")):
    pass
for _ in range(6):
    call()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    call()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc's allocator")
def test_memory_that_a_call_has_freed_is_there_for_the_next_while_it_is_sampled() -> None:
    assert int(python("-c", FAULTS).stdout) < 500, "10 calls touch 145,920 pages"


def test_a_cold_slot_is_one_call_and_the_cache_is_flushed_outside_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []

    monkeypatch.setattr(slots, "_flusher", lambda device: lambda: events.append("flush"))
    found = timer(lambda: events.append("call"), cache="cold")
    real = clocks.read

    def tick() -> Any:
        events.append("clock")
        return real()

    monkeypatch.setattr(slots, "read", tick)
    events.clear()
    found.slot()
    assert found.calls == 1
    assert events == ["flush", "clock", "call", "clock"]
