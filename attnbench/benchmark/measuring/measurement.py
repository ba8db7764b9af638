"""Measuring one subject at one case under one contract, in this process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.benchmark.measuring.agreement import agreement
from attnbench.benchmark.measuring.clock import first_call, sample
from attnbench.benchmark.measuring.contract import Contract
from attnbench.benchmark.measuring.counts import count
from attnbench.benchmark.measuring.gradient_agreement import gradient_ratio
from attnbench.benchmark.measuring.memory import is_out_of_memory, limited, peak_bytes
from attnbench.benchmark.measuring.quiet import TOLERANCE, Reading, idle
from attnbench.benchmark.measuring.sentinel import Sentinel
from attnbench.benchmark.measuring.setting import Setting, fields_of, processor_name
from attnbench.benchmark.records.record import Record
from attnbench.benchmark.workloads import BenchCase
from attnbench.registry.catalog import registry
from attnbench.subject.devices import available_devices, check_device
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

__all__ = [
    "device_name",
    "devices",
    "measure",
    "measure_address",
    "measured_call",
    "sentinel_readings",
]

Call = Callable[[], Any]


def measure(
    subject: Subject,
    case: BenchCase,
    contract: Contract,
    *,
    setting: Setting | None = None,
    quiet: Reading | None = None,
) -> Record:
    """The record of one measurement, whatever happens in it.

    Args:
        subject: what is measured.
        case: at which case; a subject that does not take it is recorded as ``unsupported``.
        contract: how.
        setting: of the run.
        quiet: the sentinels on the idle machine; the faster of those read here by default, so that
            only a change during the measurement makes it void.
    """
    setting = setting or Setting()
    fields = fields_of(case, contract, setting, subject=subject.name, kind=subject.kind)
    threads = torch.get_num_threads()
    torch.set_num_threads(contract.threads)
    started = time.perf_counter()
    spent = _Spent()
    try:
        fields["device_name"] = device_name(torch.device(case.case.device))
        reason = case.reason_against(subject)
        if reason is not None:
            found: dict[str, Any] = {"status": "unsupported", "reason": reason}
        else:
            with torch.random.fork_rng(devices=[]):
                found = _measured(subject, case, contract, quiet, spent)
    except Exception as error:
        if is_out_of_memory(error):
            found = {"status": "out_of_memory", "reason": _first_line(error)}
        else:
            found = {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    finally:
        torch.set_num_threads(threads)
    total = time.perf_counter() - started
    times = {"measuring_s": spent.seconds, "overhead_s": total - spent.seconds}
    return Record(**{**fields, **found, **times})


class _Spent:
    """Adds up the time spent on measuring."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextlib.contextmanager
    def measuring(self) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started


def _measured(
    subject: Subject, case: BenchCase, contract: Contract, quiet: Reading | None, spent: _Spent
) -> dict[str, Any]:
    device = torch.device(case.case.device)
    with spent.measuring():
        sentinel = Sentinel(device, getattr(torch, case.case.dtype))
    with limited(device):
        module, inputs = case.build(subject)
        call = measured_call(subject, module, inputs, case.direction)
        with spent.measuring():
            found: dict[str, Any] = {"first_call_s": first_call(call, device)}
            found |= _agreement(subject, module, inputs, case.direction)
            found["peak_bytes"] = peak_bytes(call, device)
            counts = count(call)
            before = sentinel.read()
            sampled = sample(call, device, contract)
            after = sentinel.read()
    low, middle, high = sampled.quartiles_s
    quiet = quiet or idle([before, after])
    found |= {
        "time_s": middle,
        "time_q1_s": low,
        "time_q3_s": high,
        "samples_s": sampled.samples_s,
        "calls": sampled.calls,
        "relative_error": sampled.relative_error,
        "operations": counts.operations,
        "matmul_operations": counts.matmul_operations,
        "moved_bytes": counts.moved_bytes,
    }
    found |= _shares(sentinel, quiet, before, after, found)
    off = max(before.off(quiet), after.off(quiet))
    if found["status"] == "ok" and off > TOLERANCE:
        found["status"] = "void"
        found["reason"] = f"a sentinel was {off:.1%} off its idle value; measure on an idle machine"
    return found


def _agreement(
    subject: Subject, module: nn.Module, inputs: Inputs, direction: str
) -> dict[str, Any]:
    """Status and errors: a subject is measured also when it is wrong, but never ranked."""
    try:
        with torch.no_grad():
            output = subject.output(module, inputs)
            found = agreement(subject, module, inputs, output)
        slopes = 0.0
        if direction != "forward" and found.agrees:
            slopes = gradient_ratio(subject, module, inputs)
    except Exception as error:
        reason = f"the reference could not be computed: {type(error).__name__}: {error}"
        return {"status": "unverified", "reason": reason.splitlines()[0]}
    values = {
        "error_abs": found.error_abs,
        "error_ratio": max(found.ratio, slopes),
        "error_rows": found.rows,
    }
    if max(found.ratio, slopes) <= 1.0:
        return {"status": "ok", **values}
    off = (
        f"gradients are off those of float64 by up to {slopes:.3g} times"
        if slopes
        else f"off the float64 reference by up to {found.error_abs:.3g}, {found.ratio:.3g} times"
    )
    reason = f"{off} what is allowed; see: {subject.check_command}"
    return {"status": "unverified", "reason": reason, **values}


def _shares(
    sentinel: Sentinel, quiet: Reading, before: Reading, after: Reading, found: Mapping[str, Any]
) -> dict[str, Any]:
    """What the sentinels said, and which share of the machine's ceilings the subject used."""
    bandwidth = sentinel.moved_bytes / quiet.copy_s
    rate = sentinel.operations / quiet.matmul_s
    return {
        "bandwidth_share": found["moved_bytes"] / found["time_s"] / bandwidth,
        "matmul_share": found["matmul_operations"] / found["time_s"] / rate,
        "sentinel": {
            "copy_before_s": before.copy_s,
            "copy_after_s": after.copy_s,
            "copy_idle_s": quiet.copy_s,
            "matmul_before_s": before.matmul_s,
            "matmul_after_s": after.matmul_s,
            "matmul_idle_s": quiet.matmul_s,
            "bandwidth_bytes_per_s": bandwidth,
            "matmul_operations_per_s": rate,
        },
    }


def measured_call(subject: Subject, module: nn.Module, inputs: Inputs, direction: str) -> Call:
    """The call that is timed: the output, or the output and the gradients of all that has one."""
    if direction == "forward":

        def forward() -> Tensor:
            with torch.no_grad():
                return subject.output(module, inputs)

        return forward
    leaves = inputs.map(lambda tensor: tensor.detach().requires_grad_())
    wanted = [leaves.query, leaves.key, leaves.value]
    wanted += [parameter for parameter in module.parameters() if parameter.requires_grad]
    seed = torch.ones((), dtype=inputs.query.dtype, device=inputs.query.device)

    def forward_backward() -> tuple[Tensor, ...]:
        output = subject.output(module, leaves)
        return torch.autograd.grad(output, wanted, seed.expand_as(output), allow_unused=True)

    return forward_backward


def device_name(device: torch.device) -> str:
    """Name of the processor or accelerator."""
    if device.type == "cpu":
        return processor_name()
    module = getattr(torch, device.type, None)
    name = getattr(module, "get_device_name", None)
    return str(name(device)) if name else device.type


def sentinel_readings(device: str, dtype: str, threads: int, number: int) -> list[Reading]:
    """Some readings of the sentinels, from which the idle one is taken."""
    torch.set_num_threads(threads)
    sentinel = Sentinel(torch.device(device), getattr(torch, dtype))
    return [sentinel.read() for _ in range(number)]


def measure_address(
    target: str,
    subject: str,
    case: BenchCase,
    contract: Contract,
    setting: Setting,
    quiet: Reading | None,
) -> Record:
    """:func:`measure` for a child process: the subject of that name at an address."""
    (found,) = [candidate for candidate in resolve(target) if candidate.name == subject]
    versions = {**setting.versions, **_distribution(found)}
    setting = replace(setting, versions=versions)
    return measure(found, case, contract, setting=setting, quiet=quiet)


def _distribution(subject: Subject) -> dict[str, str]:
    """Name and version of what brings a subject; nothing for a file."""
    plugins = (plugin for _, spec, plugin in registry().specs() if spec is subject.spec)
    return {plugin.distribution: plugin.version for plugin in plugins}


def devices(wanted: Sequence[str] | None) -> list[str]:
    """The devices asked for, or the CPU and the accelerator if there is one.

    Raises:
        DeviceError: one is not there.
    """
    if wanted is None:
        return available_devices()
    for name in wanted:
        check_device(name)
    return list(wanted)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
