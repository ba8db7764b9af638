"""Whether the Triton kernels run: on an accelerator, or by Triton's interpreter."""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

import attnbench
from attnbench_kernels.library import TRITON, VARIABLE, NotCompiledWarning

_Found = TypeVar("_Found")

_OLDEST = (7, 0)
"""Compute capability of the oldest GPU that Triton compiles for."""


class _Status:
    refusal = ""


def refusal() -> str:
    """Why the kernels were given up in this process; empty if they were not."""
    return _Status.refusal


def attended_online(*given: Any) -> tuple[Tensor, Tensor] | None:
    """The output, and what :func:`differentiated_online` needs, ``(N, L, Ev + 1, 1)``.

    ``None``, with a warning, if the kernels fail on a GPU: from then on torch's own operations run.
    Arguments are those of ``attend`` in :mod:`.triton_loops`.
    """
    found = _attempted(lambda: kernels().attend(*given), given[0])
    if found is None:
        return None
    output, logs = found
    return output, torch.cat([output, logs.unsqueeze(-1)], -1).unsqueeze(-1)


def differentiated_online(
    grad: Tensor, kept: Tensor, *given: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Gradients as of ``differentiate`` in :mod:`.triton_loops`; ``None`` as above."""

    def run() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        again = None if kept.numel() else kernels().attend(*given)
        found = again or (kept[..., :-1, 0], kept[..., -1, 0])
        grads: tuple[Tensor, Tensor, Tensor, Tensor]
        grads = kernels().differentiate(grad, *found, *given)
        return grads

    return _attempted(run, grad) if runs_online(grad) else None


def _attempted(run: Callable[[], _Found], like: Tensor) -> _Found | None:
    try:
        return run()
    except Exception as error:  # whatever a compiler may raise, torch's own operations work
        if like.device.type == "cpu":
            raise
        _Status.refusal = (
            f"Triton kernels failed on {like.device.type} ({type(error).__name__}: "
            f"{str(error).strip().partition(chr(10))[0]})"
        )
        warnings.warn(
            f"attnbench's {_Status.refusal}; they run eagerly instead, many times slower.",
            NotCompiledWarning,
            stacklevel=2,
        )
        return None


@functools.cache
def kernels() -> ModuleType:
    """The module of the kernels; only where :func:`runs_online`."""
    return importlib.import_module("attnbench_kernels.triton_loops")


def runs_online(like: Tensor) -> bool:
    """Whether Triton computes on the device and in the dtype of a tensor.

    Where it does not on an accelerator, torch's own operations run.

    Raises:
        attnbench.UsageError: the environment asks for it on a CPU, where it cannot run.
    """
    if like.dtype != torch.float32 or _Status.refusal:
        return False
    if like.device.type == "cpu":
        return os.environ.get(VARIABLE) == TRITON and _interpreted()
    return like.device.type == "cuda" and _compiled(like.device.index)


def _interpreted() -> bool:
    if not _installed() or os.environ.get("TRITON_INTERPRET") != "1":
        raise attnbench.UsageError(
            f"{VARIABLE}={TRITON} on a CPU needs Triton, and TRITON_INTERPRET=1 for its "
            f"interpreter. Install triton and set that, or unset {VARIABLE}."
        )
    return True


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@functools.cache
def _compiled(index: int | None) -> bool:
    if not _installed():
        return False
    return bool(torch.version.hip) or torch.cuda.get_device_capability(index) >= _OLDEST
