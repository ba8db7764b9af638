"""What the asv suite tracks: one function a quantity, each run in a process of its own.

asv's test takes samples for independent, and those of one process are not. So each process gives
one, and asv is told to start ten: the fewest with which its test can tell anything.
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
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.measuring.blocks import low_quantile, pair_value
from attnbench.benchmark.measuring.contract import VERSION as CONTRACT_VERSION
from attnbench.benchmark.measuring.contract import Contract
from attnbench.benchmark.measuring.decoding import Step, bytes_a_token
from attnbench.benchmark.measuring.gradient_agreement import gradient_ratio, output_agreement
from attnbench.benchmark.measuring.measured_calls import measured_call
from attnbench.benchmark.measuring.memory import peak_bytes
from attnbench.benchmark.measuring.slots import Timer, first_call, settled, shaken, shaken_blocks
from attnbench.benchmark.records.record import LAYER_BASELINE
from attnbench.cases.case import Case
from attnbench.errors import AttnbenchError
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

__all__ = ["PROCESSES", "TRACKED", "VERSION", "Prepared", "Tracked", "first_call_s", "prepare"]

VERSION = f"{CONTRACT_VERSION}.3"
"""Numbers of another version are not compared by asv; raise the second part for this module."""

PROCESSES = 10

_CONTRACT = Contract(blocks=12)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A subject and a case, ready to be measured."""

    address: str
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


def prepare(address: str, case: BenchCase, device: str) -> Prepared:
    """Make the module and the inputs of a subject at a case.

    Args:
        address: of the subject.
        case: at which; a layer has its own E.
        device: ``cpu``; anything else is the accelerator that torch finds.

    Raises:
        NotImplementedError: there is nothing to measure: the device or the subject is not there,
            or it does not take the case. asv shows ``n/a``.
    """
    torch.set_num_threads(_CONTRACT.threads)
    if device != "cpu":
        found = torch.accelerator.current_accelerator(check_available=True)
        if found is None:
            raise NotImplementedError("there is no accelerator")
        device = found.type
    try:
        subjects = resolve(address)
    except AttnbenchError as error:
        raise NotImplementedError(str(error)) from None
    subject = subjects[0]
    bench = replace(case, case=case.case.replace(device=device))
    if bench.of_layers and bench.suits(subject.kind):
        bench = bench.sized(subject.legal(bench.case).query_size)
    reason = bench.reason_against(subject)
    if reason is not None:
        raise NotImplementedError(f"{address} does not take this case: {reason}")
    return Prepared(address, subject, bench, *bench.build(subject))


def _error(prepared: Prepared) -> float:
    """The largest error as a share of what is allowed of it.

    Raises:
        ValueError: it is more than that, and there is nothing worth timing.
    """
    found = output_agreement(prepared.subject, prepared.module, prepared.inputs)
    if not found.agrees:
        raise ValueError(
            f"{prepared.subject.name} is off by {found.error_abs:.3g}, {found.ratio:.3g} times "
            f"what is allowed; see: {prepared.subject.check_command}"
        )
    return found.ratio


def _timer(prepared: Prepared, direction: str) -> Timer:
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
    return Timer(call, prepared.device, _CONTRACT)


def _sample(value: float, number: int) -> dict[str, Any]:
    """The form in which a ``track_*`` benchmark hands asv a sample, as if asv had taken it."""
    return {"samples": [value], "number": number}


def _timed(prepared: Prepared, direction: str) -> dict[str, Any]:
    with settled(prepared.device):
        timer = _timer(prepared, direction)
        chance = random.Random(os.getpid())  # noqa: S311 -- places, not secrets
        slots = []
        for _ in range(_CONTRACT.blocks):
            held = shaken(chance)
            timer.call()
            slots += [timer.slot(), timer.slot()]
        del held
    return _sample(low_quantile(slots), timer.calls)


def _time(prepared: Prepared) -> dict[str, Any]:
    return _timed(prepared, "forward")


def _time_backward(prepared: Prepared) -> dict[str, Any]:
    return _timed(prepared, "forward_backward")


def _layer_baseline(prepared: Prepared) -> Callable[[], Any]:
    case = prepared.case
    return prepare(LAYER_BASELINE, case, case.case.device.partition(":")[0]).call()


def _cache_bytes(prepared: Prepared) -> float:
    """Bytes of the cache a token; NaN, which asv shows as n/a, where nothing is decoded."""
    call = prepared.call()
    found = bytes_a_token(call) if isinstance(call, Step) else None
    return math.nan if found is None else found


def _ratio(prepared: Prepared) -> dict[str, Any]:
    """Time over that of torch's fused attention, or a layer's baseline, in blocks."""
    other = _layer_baseline(prepared) if prepared.case.of_layers else _fused(prepared.inputs)
    other()
    with settled(prepared.device):
        timer = _timer(prepared, "forward")
        base = Timer(other, prepared.device, _CONTRACT, timer.clock)
        chance = random.Random(os.getpid())  # noqa: S311 -- an order, not a secret
        blocks = list(shaken_blocks(base, timer, _CONTRACT.blocks, chance))
    return _sample(math.exp(pair_value(blocks)), timer.calls)


def _fused(inputs: Inputs) -> Callable[[], Tensor]:
    """Torch's fused attention; the query's features stand in for those of another size of key."""
    mask = inputs.mask.as_tensor()
    size = min(inputs.query.shape[-1], inputs.key.shape[-1])
    query, key = inputs.query[..., :size].contiguous(), inputs.key[..., :size].contiguous()
    value = inputs.value

    def fused() -> Tensor:
        with torch.no_grad():
            return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    return fused


def _peak_bytes(prepared: Prepared) -> int:
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
sys.path[:], *case = json.load(sys.stdin)
from attnbench.benchmark import tracking
print(tracking.first_call_s(*case))
"""


def first_call_s(address: str, case: str, direction: str, device: str) -> float:
    """Seconds of the first call in this process.

    Args:
        address: of the subject.
        case: its id.
        direction: what is called.
        device: as for :func:`prepare`.
    """
    prepared = prepare(address, BenchCase(Case.from_id(case), direction), device)
    return first_call(prepared.call(), prepared.device)


def _compile_time(prepared: Prepared) -> dict[str, Any]:
    """The first call in a fresh process, whose compilers find nothing that was compiled before."""
    case = prepared.case.case
    direction = prepared.case.direction
    told = json.dumps([sys.path, prepared.address, case.id, direction, case.device])
    with tempfile.TemporaryDirectory(prefix="attnbench-compiled-") as folder:
        found = subprocess.run(  # noqa: S603 -- this Python, and code of our own
            [sys.executable, "-c", _ALONE],
            input=told,
            env={**os.environ, **{name: os.path.join(folder, name) for name in COMPILER_CACHES}},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return _sample(float(found.stdout.split()[-1]), 1)


@dataclass(frozen=True)
class Tracked:
    """A quantity that asv tracks.

    Args:
        title: what it is, for the published page.
        unit: asv's name of the unit.
        measure: gives a number, or samples.
        processes: in how many processes it is measured.
        every_case: whether at all cases, or at the first only.
        of: ``attention`` or ``layers``, if it is tracked of those alone.
    """

    title: str
    unit: str
    measure: Callable[[Prepared], Any]
    processes: int = 1
    every_case: bool = True
    of: str = ""


TRACKED = {
    "track_time": Tracked("time, forward", "seconds", _time, PROCESSES),
    "track_time_backward": Tracked(
        "time, forward and backward", "seconds", _time_backward, PROCESSES, of="attention"
    ),
    "track_peak_bytes": Tracked("peak memory, forward", "bytes", _peak_bytes),
    "track_error": Tracked("error, of what is allowed", "", _error),
    "track_compile_time": Tracked(
        "first call, with what it compiles", "seconds", _compile_time, 2, False
    ),
    "track_ratio": Tracked("time over {baseline}", "", _ratio, PROCESSES),
    "track_cache_bytes": Tracked("bytes of cache a token", "bytes", _cache_bytes, of="layers"),
}
"""Quantities by the name of their benchmark method."""
