"""Measurement of subjects at cases under one contract, in this process."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from attnbench.attention.compile_times import compilations
from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.device import (
    accelerator_facts,
    ceilings,
    device_name,
    impossible_s,
)
from attnbench.benchmark.machine import Load, own_s
from attnbench.benchmark.memory import is_out_of_memory, peak_bytes
from attnbench.benchmark.records import BASELINES, baseline_of
from attnbench.benchmark.session import Job
from attnbench.benchmark.timed_calls import (
    Step,
    bytes_a_token,
    compulsory_bytes,
    measured_call,
)
from attnbench.benchmark.timing.blocks import (
    blocks_interval,
    low_quantile,
    take_blocks,
)
from attnbench.benchmark.timing.contract import Contract
from attnbench.benchmark.timing.slots import Timer, first_call, settled
from attnbench.benchmark.verification import Unverified, is_blind, rating, verify
from attnbench.calling.suite_guard import SuiteGuard
from attnbench.checking.outcomes import CHANGED
from attnbench.errors import AttnbenchError, RefusalError, message_of
from attnbench.registry.catalog import registry
from attnbench.specs import KernelSpec
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject

_ELSEWHERE = 0.05
"""Most time that processes of a subject may compute while it is timed, as a share."""
_MAX_TIMERS = 4

Fields = dict[str, Any]
"""Fields of a record."""


class Bench:
    """State shared by the rows of a process: timers of baselines, and ceilings."""

    def __init__(
        self, contract: Contract, *, seed: int = 0, baselines: tuple[str, str] = BASELINES
    ) -> None:
        self.contract = contract
        self.baselines = baselines
        self.chance = random.Random(seed)  # noqa: S311 -- an order, not a secret
        self.load = Load()
        self.baseline = functools.lru_cache(_MAX_TIMERS)(self._baseline)
        self.ceilings = functools.cache(ceilings)

    def _baseline(self, case: BenchCase, clock: str) -> Timer | None:
        """The baseline's timer at a case.

        There is none if it does not support the case, or without the built-in plugins.
        """
        try:
            (subject,) = resolve(baseline_of("layer" if case.of_layers else "", self.baselines))
        except AttnbenchError:
            return None
        if case.reason_against(subject) is not None:
            return None
        call = measured_call(subject, *case.build(subject), case.direction)
        call()
        return Timer(call, torch.device(case.case.device), self.contract, clock)


def measure_row(
    subject: Subject, case: BenchCase, bench: Bench, *, with_facts: bool = True, clock: str = ""
) -> Fields:
    """Measure a row in this process; an exception becomes the status of the measurement.

    Args:
        subject, case, bench: what is measured.
        with_facts: whether to also measure agreement, memory and ceilings.
        clock: clock of the slots; by default the one that fits the call.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(bench.contract.threads)
    facts: Fields = {}
    try:
        device = torch.device(case.case.device)
        facts["device_name"] = device_name(device)
        reason = case.reason_against(subject)
        if reason is not None:
            return {"status": "unsupported", "reason": reason, **facts}
        with torch.random.fork_rng(devices=[]):
            fields = _time_row(subject, case, bench, with_facts=with_facts, clock=clock)
        spec = subject.spec
        if isinstance(spec, KernelSpec) and spec.runs_as is not None:
            facts["runs_as"] = spec.runs_as()
        facts["accelerator"] = accelerator_facts(device)
        return {**facts, **fields}
    except RefusalError as error:
        return {"status": "unsupported", "reason": message_of(error), **facts}
    except Exception as error:
        if is_out_of_memory(error):
            return {"status": "out_of_memory", "reason": message_of(error), **facts}
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}", **facts}
    finally:
        torch.set_num_threads(threads)


def _time_row(
    subject: Subject, case: BenchCase, bench: Bench, *, with_facts: bool, clock: str
) -> Fields:
    device, contract = torch.device(case.case.device), bench.contract
    module, inputs = case.build(subject)
    call = measured_call(subject, module, inputs, case.direction)
    with compilations() as compiled:
        first_s = first_call(call, device)
    fields: Fields = {"status": "ok", "reason": ""}
    fastest_s = 0.0
    if with_facts:
        limits = bench.ceilings(device, getattr(torch, case.case.dtype))
        size = compulsory_bytes(module, inputs, call)
        fastest_s = impossible_s(subject, inputs, size, limits)
        fields = {
            "first_call_s": first_s,
            "compile_s": min(compiled.seconds, first_s),
            "compiled": compiled.source,
            **rating(subject, module, inputs, case.direction),
            "peak_bytes": peak_bytes(call, device),
            "cache_bytes_per_token": bytes_a_token(call) if isinstance(call, Step) else None,
            "sentinel": {
                "bandwidth_bytes_per_s": limits.bytes_per_s,
                "matmul_operations_per_s": limits.operations_per_s,
            },
        }
    with settled(device):
        timer = Timer(call, device, contract, clock)
        base = bench.baseline(case, timer.clock) if fields["status"] == "ok" else None
        started_s, elsewhere_s = time.perf_counter(), _elsewhere_s()
        pace = {"slot_s": contract.slot_s, "cap_s": contract.cap_s}
        # without a baseline it takes turns with itself
        blocks = [*take_blocks(base or timer, timer, contract.blocks, bench.chance, **pace)]
        slots = [slot for block in blocks for slot in block.side("B")]
        elsewhere_s = _elsewhere_s() - elsewhere_s
        is_busy = elsewhere_s > _ELSEWHERE * (time.perf_counter() - started_s) + 0.03
        if fields["status"] == "ok":
            try:
                verify(subject, module, inputs, case.direction, timer.samples)
                _refuse_hidden_work(low_quantile(slots), fastest_s, elsewhere_s * is_busy)
            except Unverified as error:
                reason = f"{error}; see: {subject.check_command}"
                fields |= {"status": "unverified", "reason": reason}
    time_s = low_quantile(slots)
    if fields["status"] == "ok" and base is not None:
        name = baseline_of(subject.kind, bench.baselines)
        ratio, low, high = blocks_interval(blocks)
        fields |= {"baseline": name, "ratio": ratio, "ratio_low": low, "ratio_high": high}
    return {
        **fields,
        "clock": timer.clock,
        "time_s": time_s,
        "tokens_per_s": None if case.tokens is None else case.tokens / time_s,
        "samples_s": tuple(slot.seconds for slot in slots),
        "calls": timer.calls,
        "load": {
            **bench.load.read(),
            "disturbed_share": sum(s.disturbed for s in slots) / len(slots),
        },
    }


def _refuse_hidden_work(time_s: float, fastest_s: float, elsewhere_s: float) -> None:
    """Refuse a time that is shorter than the work.

    Raises:
        Unverified: other processes did it, or the machine is not that fast.
    """
    if elsewhere_s:
        raise Unverified(
            f"processes that it started computed for {elsewhere_s:.2g} s while it was "
            "timed, which its time does not hold"
        )
    if time_s < fastest_s:
        raise Unverified(
            f"a call took {time_s:.3g} s, and this machine needs at least {fastest_s:.3g} s to "
            "read its inputs and do its matrix products"
        )


def _elsewhere_s() -> float:
    """CPU time of the processes that this one has started, by ticks of 10 ms."""
    return own_s() - time.process_time()


def measure_rows(
    jobs: Sequence[Job], contract: Contract, seed: int, baselines: tuple[str, str] = BASELINES
) -> Iterator[Fields]:
    """Measure rows one after another; this is the task of a process of a run.

    Yields:
        The fields of each record. If the code of a subject changed the suite, they are the last.
    """
    guard = SuiteGuard()
    bench = Bench(contract, seed=seed, baselines=baselines)
    for job in jobs:
        (subject,) = resolve(job.target)
        row = measure_row(subject, job.case, bench, with_facts=job.with_facts, clock=job.clock)
        row["versions"] = _distribution(subject)
        if change := guard.change() or ("a comparison was replaced" if is_blind() else None):
            yield {"status": "crashed", "reason": CHANGED.format(change)}
            return
        yield row


def _distribution(subject: Subject) -> dict[str, str]:
    """Name and version of the distribution that provides a subject; empty for a file."""
    plugins = (plugin for _, spec, plugin in registry().specs() if spec is subject.spec)
    return {plugin.distribution: plugin.version for plugin in plugins}
