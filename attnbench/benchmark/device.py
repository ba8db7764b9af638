"""The device that computes: its ceilings, and its description in a record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from attnbench.benchmark.agreement import is_scaled_dot
from attnbench.benchmark.machine import processor_name
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_TIMES = 5

_SAFETY = 2.0
"""How many times faster than the measured ceilings a call must be to be impossible: the sentinels
may have been disturbed, and reading alone is faster than copying."""


@dataclass(frozen=True)
class Ceilings:
    """The peak rates of a device, as measured by the sentinels.

    Args:
        bytes_per_s: bytes read and written per second by a copy through memory.
        operations_per_s: operations per second of a matrix product in one dtype.
        cached_bytes_per_s: bytes read and written per second by a copy within the caches.
        most_operations_per_s: the same as ``operations_per_s`` or, if more, in float32.
    """

    bytes_per_s: float
    operations_per_s: float
    cached_bytes_per_s: float
    most_operations_per_s: float


def ceilings(device: torch.device, dtype: torch.dtype = torch.float32) -> Ceilings:
    """Time each sentinel a few times and keep the fastest, since disturbances only slow it down.

    The copied buffer has 128 MiB on a CPU and 256 MiB on an accelerator, so that the copy goes
    through memory.
    """
    size, side = (2**27, 512) if device.type == "cpu" else (2**28, 4096)
    rate = _products_per_s(side, device, dtype)
    return Ceilings(
        bytes_per_s=_copy_bytes_per_s(size, device),
        operations_per_s=rate,
        cached_bytes_per_s=max(_copy_bytes_per_s(2**power, device) for power in (16, 18, 20)),
        most_operations_per_s=max(rate, _products_per_s(side, device, torch.float32)),
    )


def _copy_bytes_per_s(size: int, device: torch.device) -> float:
    source = torch.ones(size // 4, dtype=torch.int32, device=device)
    target = torch.ones_like(source)
    return 2 * size / _fastest(lambda: target.copy_(source), device, max(1, 2**20 // size))


def _products_per_s(side: int, device: torch.device, dtype: torch.dtype) -> float:
    generator = torch.Generator().manual_seed(0)
    # random: constant numbers flip few bits, and a power-limited device then runs faster
    left, right = torch.randn(2, side, side, generator=generator).to(device, dtype)
    out = torch.empty_like(left)
    return 2 * side**3 / _fastest(lambda: torch.mm(left, right, out=out), device)


def _fastest(call: Callable[[], object], device: torch.device, calls: int = 1) -> float:
    """The least mean seconds of some consecutive calls."""

    def repeat_call() -> None:
        for _ in range(calls):
            call()

    repeat_call()  # the first call initialises libraries
    return min(_call_s(repeat_call, device) for _ in range(_TIMES)) / calls


def _call_s(call: Callable[[], object], device: torch.device) -> float:
    if device.type == "cpu":
        started, used = time.perf_counter(), time.process_time()
        call()
        used = time.process_time() - used
        # less than the time that passed where another process had a core meanwhile
        return min(time.perf_counter() - started, used / torch.get_num_threads())
    start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.accelerator.synchronize(device)
    return start.elapsed_time(end) / 1e3


def impossible_s(
    subject: Subject, inputs: Inputs, compulsory_bytes: int, limits: Ceilings
) -> float:
    """Seconds that no call of a subject can undercut, whatever it counts as its operations.

    Every call reads its inputs and writes its output. A softmax over all keys has no shortcut:
    each weight that a mask allows multiplies a value, and in scaled dot-product attention, each
    score is a product of a query and a key. Where the query does not count, rows are pooled once.
    """
    products = 0
    has_softmax = subject.scoring is not None or is_scaled_dot(subject)
    if has_softmax and "query_independent" not in subject.laws:
        allowed = inputs.mask.allowed
        pairs = math.prod(inputs.query.shape[:-1]) * inputs.key.shape[-2]
        if allowed is not None:
            pairs = round(pairs * float(allowed.double().mean()))
        sizes = inputs.value.shape[-1] + is_scaled_dot(subject) * inputs.query.shape[-1]
        products = 2 * pairs * sizes
    moving_s = compulsory_bytes / limits.cached_bytes_per_s
    return max(moving_s, products / limits.most_operations_per_s) / _SAFETY


def device_name(device: torch.device) -> str:
    """The name of the processor or accelerator."""
    if device.type == "cpu":
        return processor_name()
    module = getattr(torch, device.type, None)
    name = getattr(module, "get_device_name", None)
    return str(name(device)) if name else device.type


def accelerator_facts(device: torch.device) -> dict[str, Any]:
    """Versions and modes of torch's CUDA libraries; empty elsewhere."""
    if device.type != "cuda":
        return {}
    return {
        "cuda": torch.version.cuda or torch.version.hip,
        "cudnn": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]  # no types there
        "tf32": {
            "matmul": torch.backends.cuda.matmul.allow_tf32,
            "cudnn": torch.backends.cudnn.allow_tf32,
        },
    }
