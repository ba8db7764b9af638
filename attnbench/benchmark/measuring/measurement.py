"""Measurement of one subject at one case under one contract, in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from attnbench.attention.compile_times import compilations
from attnbench.benchmark.agreement.verification import Unverified, is_blind, rating, verify
from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.contract import Contract
from attnbench.benchmark.decoding import Step, bytes_a_token
from attnbench.benchmark.machine.accelerator import accelerator_facts
from attnbench.benchmark.machine.load import own_s, stolen_s
from attnbench.benchmark.machine.sentinel import Ceilings
from attnbench.benchmark.machine.setting import processor_name
from attnbench.benchmark.measuring.counts import Counts, count
from attnbench.benchmark.measuring.measured_calls import (
    compulsory_bytes,
    measured_call,
)
from attnbench.benchmark.measuring.memory import limited, peak_bytes
from attnbench.benchmark.measuring.roofline import impossible_s, roofline_s
from attnbench.benchmark.measuring.row_measurements import Job, RowMeasurement
from attnbench.benchmark.measuring.shared_timers import Bench, timer_of
from attnbench.benchmark.out_of_memory import is_out_of_memory
from attnbench.benchmark.records.record import BASELINES
from attnbench.benchmark.timing.blocks import Block, Slot, low_quantile, take_blocks
from attnbench.benchmark.timing.slots import Timer, first_call, settled
from attnbench.checking.canaries import CHANGED
from attnbench.checking.suite_guard import SuiteGuard
from attnbench.errors import RefusalError, message_of
from attnbench.registry.catalog import registry
from attnbench.specs import KernelSpec
from attnbench.subject.devices import available_devices, check_device
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject

_ELSEWHERE = 0.05
"""Most time that processes of a subject may compute while it is timed, as a share."""


def measure_row(
    subject: Subject, case: BenchCase, bench: Bench, *, with_facts: bool = True, clock: str = ""
) -> RowMeasurement:
    """Measure a row in this process; an exception becomes the status of the measurement."""
    threads = torch.get_num_threads()
    torch.set_num_threads(bench.contract.threads)
    try:
        device = torch.device(case.case.device)
        facts: dict[str, Any] = {"device_name": device_name(device)}
        reason = case.reason_against(subject)
        if reason is not None:
            return RowMeasurement("unsupported", reason, facts)
        with torch.random.fork_rng(devices=[]), limited(device):
            measurement = _time_row(subject, case, bench, with_facts=with_facts, clock=clock)
        spec = subject.spec
        if isinstance(spec, KernelSpec) and spec.runs_as is not None:
            facts["runs_as"] = spec.runs_as()
        facts["accelerator"] = accelerator_facts(device)  # clocks right after the load
        return replace(measurement, facts={**facts, **measurement.facts})
    except RefusalError as error:
        return RowMeasurement("unsupported", message_of(error))
    except Exception as error:
        if is_out_of_memory(error):
            status, reason = "out_of_memory", message_of(error)
        else:
            status, reason = "failed", f"{type(error).__name__}: {error}"
        return RowMeasurement(status, reason)
    finally:
        torch.set_num_threads(threads)


def _time_row(
    subject: Subject, case: BenchCase, bench: Bench, *, with_facts: bool, clock: str
) -> RowMeasurement:
    device, contract = torch.device(case.case.device), bench.contract
    module, inputs = case.build(subject)
    call = measured_call(subject, module, inputs, case.direction)
    with compilations() as compiled:
        first_s = first_call(call, device)
    facts: dict[str, Any] = {}
    status, reason = "ok", ""
    if with_facts:
        facts = {
            "first_call_s": first_s,
            "compile_s": min(compiled.seconds, first_s),
            "compiled": compiled.source,
            **rating(subject, module, inputs, case.direction),
        }
        status, reason = facts.pop("status"), facts.pop("reason")
        facts["peak_bytes"] = peak_bytes(call, device)
        counts = count(call)
        facts["matmul_operations"] = counts.matmul_operations
        facts["compulsory_bytes"] = compulsory_bytes(module, inputs, call)
        if isinstance(call, Step):
            facts["cache_bytes_per_token"] = bytes_a_token(call)
    with settled(device):
        timer = timer_of(subject, case, call, contract, clock)
        base = bench.baseline(case, timer.clock) if status == "ok" else None
        timing_s, elsewhere_s = time.perf_counter(), _elsewhere_s()
        blocks, slots = _blocks(timer, base, bench) if base else ([], _slots(timer, contract))
        timing_s = time.perf_counter() - timing_s
        elsewhere_s = _elsewhere_s() - elsewhere_s
        if with_facts:
            bound = impossible_s(subject, inputs, facts["compulsory_bytes"], bench.ceilings(case))
            facts |= _limits(counts, facts["compulsory_bytes"], slots, bench.ceilings(case))
        if status == "ok":
            try:
                verify(subject, module, inputs, case.direction, timer.samples)
                if elsewhere_s > _ELSEWHERE * timing_s + 0.03:
                    raise Unverified(
                        f"processes that it started computed for {elsewhere_s:.2g} s while it was "
                        "timed, which its time does not hold"
                    )
                if with_facts and low_quantile(slots) < bound:
                    raise Unverified(
                        f"a call took {low_quantile(slots):.3g} s, and this machine needs at least "
                        f"{bound:.3g} s to read its inputs and do its matrix products"
                    )
            except Unverified as error:
                status, reason = "unverified", f"{error}; see: {subject.check_command}"
    return RowMeasurement(
        status=status,
        reason=reason,
        facts=facts,
        clock=timer.clock,
        calls=timer.calls,
        slots=tuple(slots),
        blocks=tuple(blocks),
        null_s=bench.null_s(case, timer.clock) if with_facts else None,
        load=bench.load(),
    )


def _elsewhere_s() -> float:
    """CPU time of the processes that this one has started, by ticks of 10 ms."""
    return own_s(whole=True) - own_s(whole=False)


def _limits(
    counts: Counts, compulsory_bytes: int, slots: Sequence[Slot], limits: Ceilings
) -> dict[str, Any]:
    """The ceilings of the machine, and how close the fastest slot came to them."""
    floor = roofline_s(counts, compulsory_bytes, limits)
    seconds = min(slot.seconds for slot in slots)
    return {
        "roofline_share": None if floor is None else floor / seconds,
        "sentinel": {
            "bandwidth_bytes_per_s": limits.bytes_per_s,
            "matmul_operations_per_s": limits.operations_per_s,
        },
    }


def _blocks(timer: Timer, base: Timer, bench: Bench) -> tuple[list[Block], list[Slot]]:
    """Take blocks with the baseline as side A, at least one; returns them and B's slots."""
    blocks: list[Block] = []
    contract = bench.contract
    stolen = stolen_s()
    for block in take_blocks(
        base,
        timer,
        contract.blocks,
        bench.chance,
        slot_s=contract.slot_s,
        cap_s=contract.cap_s,
    ):
        before, stolen = stolen, stolen_s()
        if stolen > before:
            block = Block(block.order, tuple(replace(s, disturbed=True) for s in block.slots))
        blocks.append(block)
    return blocks, [slot for block in blocks for slot in block.side("B")]


def _slots(timer: Timer, contract: Contract) -> list[Slot]:
    """Take slots without a baseline."""
    deadline = time.perf_counter() + contract.cap_s
    slots = [timer.slot()]
    while len(slots) < 2 * contract.blocks and time.perf_counter() < deadline:
        slots.append(timer.slot())
    return slots


def device_name(device: torch.device) -> str:
    """The name of the processor or accelerator."""
    if device.type == "cpu":
        return processor_name()
    module = getattr(torch, device.type, None)
    name = getattr(module, "get_device_name", None)
    return str(name(device)) if name else device.type


def measure_rows(
    jobs: Sequence[Job],
    contract: Contract,
    seed: int,
    baselines: tuple[str, str] = BASELINES,
) -> Iterator[tuple[int, RowMeasurement | None]]:
    """Measure rows one after another; this is the task of a process of a run.

    Yields:
        The index of a job and ``None`` when it begins, then the index and its measurement. If the
        code of a subject changed the suite, its measurement is the last.
    """
    guard = SuiteGuard()
    bench = Bench(contract, seed=seed, baselines=(baselines[0], baselines[1]))
    for number, job in enumerate(jobs):
        yield number, None
        (subject,) = resolve(job.target)
        row = measure_row(subject, job.case, bench, with_facts=job.with_facts, clock=job.clock)
        if job.with_facts:
            row = replace(row, facts={**row.facts, "versions": _distribution(subject)})
        change = guard.change() or ("a comparison was replaced" if is_blind() else None)
        if change is not None:
            yield number, RowMeasurement("crashed", CHANGED.format(change))
            return
        yield number, row


def _distribution(subject: Subject) -> dict[str, str]:
    """Name and version of the distribution that provides a subject; empty for a file."""
    plugins = (plugin for _, spec, plugin in registry().specs() if spec is subject.spec)
    return {plugin.distribution: plugin.version for plugin in plugins}


def devices(wanted: Sequence[str] | None) -> list[str]:
    """Check the requested devices; by default, return the CPU and the accelerator if present.

    Raises:
        DeviceError: a device is not available.
    """
    if wanted is None:
        return available_devices()
    for name in wanted:
        check_device(name)
    return list(wanted)
