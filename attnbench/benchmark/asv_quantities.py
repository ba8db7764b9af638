"""The quantities that the asv suite tracks: one function each, run in its own process.

asv's statistical test assumes independent samples, and samples of one process are not. Each process
therefore gives one sample, and asv starts ten: the fewest with which its test can detect anything.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.contract import VERSION as CONTRACT_VERSION
from attnbench.benchmark.contract import Contract
from attnbench.benchmark.memory import peak_bytes
from attnbench.benchmark.records import BASELINES
from attnbench.benchmark.timed_calls import Step, bytes_a_token, measured_call
from attnbench.benchmark.timing.blocks import low_quantile, pair_value, take_blocks
from attnbench.benchmark.timing.samples import Samples
from attnbench.benchmark.timing.slots import Timer, first_call, settled
from attnbench.benchmark.verification import rating, verify
from attnbench.cases.case import Case
from attnbench.errors import AttnbenchError
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

VERSION = f"{CONTRACT_VERSION}.6"
"""asv compares results of equal versions only; raise the second part when this module changes."""

PROCESSES = 10
"""Processes of a benchmark. A ratio has one more, so that asv's median is one of them and has no
further digits."""

_CONTRACT = Contract(blocks=12)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A subject and a case, ready to be measured."""

    address: str
    subject: Subject
    case: BenchCase
    module: nn.Module
    inputs: Inputs
    baseline: str

    @property
    def device(self) -> torch.device:
        """The device of the measurement."""
        return torch.device(self.case.case.device)

    def call(self, direction: str = "forward") -> Callable[[], Any]:
        """The call that is timed."""
        return measured_call(self.subject, self.module, self.inputs, direction)

    def verify(self, samples: Samples, direction: str = "forward") -> None:
        """Compare what was timed with the reference."""
        verify(self.subject, self.module, self.inputs, direction, samples)


def prepare(address: str, case: BenchCase, device: str, baseline: str = BASELINES[0]) -> Prepared:
    """Build the module and the inputs of a subject at a case.

    Raises:
        NotImplementedError: there is nothing to measure, because the device or the subject does not
            exist or the subject does not support the case. asv shows ``n/a``.
    """
    torch.set_num_threads(_CONTRACT.threads)
    if device != "cpu":
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        if accelerator is None:
            raise NotImplementedError("there is no accelerator")
        device = accelerator.type
    try:
        subject = resolve(address)[0]
    except AttnbenchError as error:
        raise NotImplementedError(str(error)) from None
    bench = replace(case, case=case.case.replace(device=device))
    if bench.of_layers and bench.suits(subject.kind):
        bench = bench.sized(subject.legal(bench.case).query_size)
    reason = bench.reason_against(subject)
    if reason is not None:
        raise NotImplementedError(f"{address} does not support this case: {reason}")
    return Prepared(address, subject, bench, *bench.build(subject), baseline)


def _error(prepared: Prepared, direction: str = "forward") -> float:
    """The largest error of the output or a gradient, as a share of the allowed error.

    Raises:
        ValueError: the share is above 1, so that timing the subject makes no sense.
    """
    result = rating(prepared.subject, prepared.module, prepared.inputs, direction)
    if result["status"] != "ok":
        raise ValueError(f"{prepared.subject.name}: {result['reason']}")
    return _round(result["error_ratio"], 3)


def _round(value: float, digits: int) -> float:
    """A number without the digits that say nothing, since asv prints all of them."""
    return float(f"{value:.{digits}g}")


def _timer(prepared: Prepared, direction: str) -> Timer:
    _error(prepared, direction)
    call = prepared.call(direction)
    call()
    return Timer(call, prepared.device, _CONTRACT)


def _sample(value: float, number: int) -> dict[str, Any]:
    """Wrap a value in the form in which asv stores samples that it took itself."""
    return {"samples": [value], "number": number}


def _time(prepared: Prepared, direction: str) -> dict[str, Any]:
    with settled(prepared.device):
        timer = _timer(prepared, direction)
        chance = random.Random(os.getpid())  # noqa: S311 -- places, not secrets
        slots = []
        for _ in range(_CONTRACT.blocks):
            timer.shake(chance.getrandbits(32))
            slots += [timer.slot(), timer.slot()]
    prepared.verify(timer.samples, direction)
    return _sample(low_quantile(slots), timer.calls)


def _cache_bytes(prepared: Prepared) -> float:
    """Bytes of cache per token; NaN, which asv shows as n/a, if nothing is decoded."""
    call = prepared.call()
    size = bytes_a_token(call) if isinstance(call, Step) else None
    return math.nan if size is None else size


def _ratio(prepared: Prepared) -> dict[str, Any]:
    """Time over that of the baseline, taken in blocks."""
    baseline_call = prepare(prepared.baseline, prepared.case, prepared.device.type).call()
    baseline_call()
    with settled(prepared.device):
        timer = _timer(prepared, "forward")
        baseline_timer = Timer(baseline_call, prepared.device, timer.contract, timer.clock)
        chance = random.Random(os.getpid())  # noqa: S311 -- an order, not a secret
        pace = {"slot_s": _CONTRACT.slot_s, "cap_s": math.inf}
        blocks = list(take_blocks(baseline_timer, timer, _CONTRACT.blocks, chance, **pace))
    prepared.verify(timer.samples)
    return _sample(_round(math.exp(pair_value(blocks)), 4), timer.calls)


def _peak_bytes(prepared: Prepared) -> int:
    _error(prepared)
    call = prepared.call()
    call()
    return peak_bytes(call, prepared.device)


COMPILER_CACHES = (
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "XDG_CACHE_HOME",
)


_ALONE = """
import json, sys
sys.path[:], *case = json.loads(sys.argv[1])
from attnbench.benchmark import asv_quantities
print(asv_quantities.first_call_s(*case))
"""


def first_call_s(address: str, case: str, direction: str, device: str) -> float:
    """Time the first call in this process, in seconds."""
    prepared = prepare(address, BenchCase(Case.from_id(case), direction), device)
    return first_call(prepared.call(), prepared.device)


def _compile_time(prepared: Prepared) -> dict[str, Any]:
    """Time the first call in a new process, whose compilers start with empty caches."""
    _error(prepared)
    case, direction = prepared.case.case, prepared.case.direction
    text = json.dumps([sys.path, prepared.address, case.id, direction, case.device])
    with tempfile.TemporaryDirectory(prefix="attnbench-compiled-") as folder:
        caches = {name: os.path.join(folder, name) for name in COMPILER_CACHES}
        command = [sys.executable, "-c", _ALONE, text]
        output = subprocess.check_output(command, env={**os.environ, **caches}, text=True)  # noqa: S603 -- this Python, and code of our own
    return _sample(float(output.split()[-1]), 1)


@dataclass(frozen=True)
class Tracked:
    """A quantity that asv tracks.

    Args:
        title: name of the quantity on the published page.
        unit: asv's name of the unit.
        measure: function that returns a number or samples.
        processes: number of processes that measure it.
        every_case: whether it is measured at every case or only at the first.
        of: ``attention`` or ``layers`` if it applies to these only; empty for both.
    """

    title: str
    unit: str
    measure: Callable[[Prepared], Any]
    processes: int = 1
    every_case: bool = True
    of: str = ""


TRACKED = {
    "track_time": Tracked(
        "time, forward", "seconds", partial(_time, direction="forward"), PROCESSES
    ),
    "track_time_backward": Tracked(
        "time, forward and backward",
        "seconds",
        partial(_time, direction="forward_backward"),
        PROCESSES,
        of="attention",
    ),
    "track_peak_bytes": Tracked("peak memory, forward", "bytes", _peak_bytes),
    "track_error": Tracked("error, of what is allowed", "", _error),
    "track_compile_time": Tracked(
        "first call, with what it compiles", "seconds", _compile_time, 2, False
    ),
    "track_ratio": Tracked("time over {baseline}", "", _ratio, PROCESSES + 1),
    "track_cache_bytes": Tracked("bytes of cache a token", "bytes", _cache_bytes, of="layers"),
}
"""The tracked quantities by the name of their benchmark method."""
