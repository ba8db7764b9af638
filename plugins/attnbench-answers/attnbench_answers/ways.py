"""One of the ways that are compared, and its runs: in its own dtype, and in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbench import UsageError
from attnbench.testing import NormEpsilon

UNITS = 4.0
"""Units that rounding explains, as everywhere in the suite."""

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class Way:
    """One of two ways to compute the same.

    Args:
        name: name for the report.
        module: the module, in the dtype under test.
        call: ``call(module, inputs)`` gives the output; it may call the module several times.
        dtype: the dtype under test.
    """

    name: str
    module: nn.Module
    call: Callable[[nn.Module, Tensors], Tensor]
    dtype: torch.dtype

    def given(self, inputs: Tensors) -> list[Tensor]:
        """Inputs in its own dtype."""
        return [t.to(self.dtype) if t.is_floating_point() else t for t in inputs]


def coarsest(pair: Sequence[Way]) -> torch.dtype:
    """The dtype of the ways that holds the fewest digits."""
    return max((way.dtype for way in pair), key=lambda dtype: torch.finfo(dtype).eps)


def short(dtype: torch.dtype) -> str:
    """The name of a dtype without its module."""
    return str(dtype).removeprefix("torch.")


def run(way: Way, inputs: Tensors) -> Tensor:
    """The output in the way's own dtype."""
    with torch.no_grad():
        return way.call(way.module, way.given(inputs)).detach().clone()


def widened(
    way: Way, inputs: Tensors, held: torch.dtype | None = None
) -> tuple[nn.Module, list[Tensor]]:
    """The module and inputs in float64, with the values that the way's dtype holds.

    Args:
        way: the way.
        inputs: its inputs.
        held: a coarser dtype, to which inputs and parameters are rounded first.

    Raises:
        UsageError: the module does not fit into memory a second time.
    """
    dtype = held or way.dtype
    given = [t.to(dtype).double() if t.is_floating_point() else t for t in inputs]
    needed = 8 * sum(parameter.numel() for parameter in way.module.parameters())
    free = psutil.virtual_memory().available
    if needed > free:
        raise UsageError(
            f"{way.name} needs {needed / 2**30:.1f} GiB for its weights in float64, and "
            f"{free / 2**30:.1f} GiB are free: compare a model with fewer layers."
        )
    module = copy.deepcopy(way.module).double()
    for parameter in module.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype).double()
    return module, given


def run_wide(way: Way, inputs: Tensors, held: torch.dtype | None = None) -> Tensor:
    """The output in float64, of the values that a dtype holds: by default the way's own."""
    module, given = widened(way, inputs, held)
    with torch.no_grad(), NormEpsilon(way.dtype):
        return way.call(module, given).detach().double()


def unfused() -> AbstractContextManager[None]:
    """Let torch compute fused attention by operations, since nobody can look into a kernel."""
    return sdpa_kernel(SDPBackend.MATH)


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether all elements are equal, NaN to NaN."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
