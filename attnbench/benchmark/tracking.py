"""What the asv suite tracks: one function a quantity, each run in a process of its own.

asv's test takes samples for independent, and those of one process are not. So each process gives
two, the medians of its halves, and asv is told to start five processes: ten samples a side, the
fewest with which its test can tell anything.
"""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from attnbench.benchmark.measuring.agreement import agreement
from attnbench.benchmark.measuring.clock import first_call, sample
from attnbench.benchmark.measuring.contract import VERSION as CONTRACT_VERSION
from attnbench.benchmark.measuring.contract import Contract
from attnbench.benchmark.measuring.gradient_agreement import gradient_ratio
from attnbench.benchmark.measuring.measurement import measured_call
from attnbench.benchmark.measuring.memory import peak_bytes
from attnbench.benchmark.workloads import BenchCase
from attnbench.cases.case import Case
from attnbench.errors import AttnbenchError
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

__all__ = ["PROCESSES", "TRACKED", "VERSION", "Prepared", "Tracked", "prepare"]

VERSION = f"{CONTRACT_VERSION}.2"
"""Numbers of another version are not compared by asv; raise the second part for this module."""

PROCESSES = 5

_CONTRACT = Contract(min_samples=8, min_s=0.08)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A subject and a case, ready to be measured."""

    subject: Subject
    case: BenchCase
    module: nn.Module
    inputs: Inputs

    @property
    def device(self) -> torch.device:
        """Where it is measured."""
        return torch.device(self.case.case.device)

    def call(self, direction: str = "forward") -> Callable[[], Any]:
        """What is timed."""
        return measured_call(self.subject, self.module, self.inputs, direction)


def prepare(address: str, case: Case, device: str) -> Prepared:
    """Make the module and the inputs of a subject at a case.

    Raises:
        NotImplementedError: there is nothing to measure: the device or the subject is not there,
            or it does not take the case. asv shows ``n/a``.
    """
    torch.set_num_threads(_CONTRACT.threads)
    if device == "accelerator":
        found = torch.accelerator.current_accelerator(check_available=True)
        if found is None:
            raise NotImplementedError("there is no accelerator")
        device = found.type
    try:
        subjects = resolve(address)
    except AttnbenchError as error:
        raise NotImplementedError(str(error)) from None
    bench = BenchCase(case.replace(device=device))
    reason = bench.reason_against(subjects[0])
    if reason is not None:
        raise NotImplementedError(f"{address} does not take this case: {reason}")
    return Prepared(subjects[0], bench, *bench.build(subjects[0]))


def _error(prepared: Prepared) -> float:
    """The largest error as a share of what is allowed of it.

    Raises:
        ValueError: it is more than that, and there is nothing worth timing.
    """
    with torch.no_grad():
        output = prepared.call()()
        found = agreement(prepared.subject, prepared.module, prepared.inputs, output)
    if not found.agrees:
        raise ValueError(
            f"{prepared.subject.name} is off by {found.error_abs:.3g}, {found.ratio:.3g} times "
            f"what is allowed; see: {prepared.subject.check_command}"
        )
    return found.ratio


def _sampled(prepared: Prepared, direction: str) -> dict[str, Any]:
    """The form in which a ``track_*`` benchmark hands asv samples, as if asv had taken them."""
    _error(prepared)
    if direction != "forward":
        slopes = gradient_ratio(prepared.subject, prepared.module, prepared.inputs)
        if slopes > 1.0:
            raise ValueError(
                f"gradients of {prepared.subject.name} are off by {slopes:.3g} times what is "
                f"allowed; see: {prepared.subject.check_command}"
            )
    call = prepared.call(direction)
    call()
    found = sample(call, prepared.device, _CONTRACT)
    middle = math.ceil(len(found.samples_s) / 2)
    halves = found.samples_s[:middle], found.samples_s[middle:]
    return {"samples": [statistics.median(half) for half in halves], "number": found.calls}


def _time(prepared: Prepared) -> dict[str, Any]:
    return _sampled(prepared, "forward")


def _time_backward(prepared: Prepared) -> dict[str, Any]:
    return _sampled(prepared, "forward_backward")


def _peak_bytes(prepared: Prepared) -> int:
    call = prepared.call()
    call()
    return peak_bytes(call, prepared.device)


def _compile_time(prepared: Prepared) -> dict[str, Any]:
    # asv's working folder is new for each process: nothing that was compiled before is found
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(os.getcwd(), "compiled")
    return {"samples": [first_call(prepared.call(), prepared.device)], "number": 1}


@dataclass(frozen=True)
class Tracked:
    """A quantity that asv tracks.

    Args:
        title: what it is, for the published page.
        unit: asv's name of the unit.
        measure: gives a number, or samples.
        processes: in how many processes it is measured.
        every_case: whether at all cases, or at the first only.
    """

    title: str
    unit: str
    measure: Callable[[Prepared], Any]
    processes: int = 1
    every_case: bool = True


TRACKED = {
    "track_time": Tracked("time, forward", "seconds", _time, PROCESSES),
    "track_time_backward": Tracked(
        "time, forward and backward", "seconds", _time_backward, PROCESSES, False
    ),
    "track_peak_bytes": Tracked("peak memory, forward", "bytes", _peak_bytes),
    "track_error": Tracked("error, of what is allowed", "", _error),
    "track_compile_time": Tracked(
        "first call, with what it compiles", "seconds", _compile_time, 2, False
    ),
}
"""Quantities by the name of their benchmark method."""
