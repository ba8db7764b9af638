"""The backends of torch's own attention on this machine: which work, agree, and how fast."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attnbench.errors import first_line
from attnbench.oracle.operations import nudged

_BACKENDS = {
    "math": SDPBackend.MATH,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
_ROUNDS = 7
_UNITS = 4.0
"""Allowed error, in multiples of what one unit in the last place of the inputs changes."""


def backend_rows(sizes: Sequence[int], dtypes: Sequence[str]) -> list[dict[str, Any]]:
    """Try each backend with a causal call, on the CPU and on the accelerator if there is one.

    Returns:
        A row for each: ``works``, ``reason`` why not, ``error`` as a multiple of what is allowed,
        ``agrees``, and ``time_s``, the least of some calls in turn with the other backends'.
    """
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    devices = [torch.device("cpu"), *([accelerator] if accelerator else [])]
    shape = tuple(sizes)
    return [
        row
        for device in devices
        for dtype in dtypes
        for row in _rows(shape, getattr(torch, dtype), device)
    ]


def _rows(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(sizes, generator=generator).to(dtype) for _ in range(3)]
    target = _causal([tensor.double() for tensor in tensors])
    shifted = [nudged(tensor.double(), torch.finfo(dtype).eps, generator) for tensor in tensors]
    gap = _causal(shifted) - target
    allowed = _UNITS * float(gap.abs().max()) + torch.finfo(dtype).eps * float(target.abs().max())
    inputs = [tensor.to(device) for tensor in tensors]
    rows: dict[str, dict[str, Any]] = {}
    for name in _BACKENDS:
        row: dict[str, Any] = {"device": device.type, "dtype": str(dtype).partition(".")[2]}
        row |= {"backend": name, "works": False, "agrees": None, "error": None, "time_s": None}
        try:
            output = _attend(name, inputs).cpu().double()
        except RuntimeError as refusal:
            row["reason"] = first_line(str(refusal))
        else:
            error = float((output - target).abs().max()) / allowed
            row |= {"works": True, "agrees": error <= 1.0, "error": error, "reason": ""}
        rows[name] = row
    names = [name for name, row in rows.items() if row["works"]]
    for _ in range(_ROUNDS):
        for name in names:
            start = time.perf_counter()
            _attend(name, inputs)
            seconds, best = time.perf_counter() - start, rows[name]["time_s"]
            rows[name]["time_s"] = seconds if best is None else min(best, seconds)
    return list(rows.values())


def _causal(inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    query, key, value = inputs
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def _attend(name: str, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    with warnings.catch_warnings(), sdpa_kernel(_BACKENDS[name]), torch.no_grad():
        warnings.simplefilter("ignore")  # torch warns why a backend does not fit, and then raises
        output = _causal(inputs)
    if output.device.type != "cpu":
        torch.accelerator.synchronize()
    return output
