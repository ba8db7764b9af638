"""One of the ways that are compared, and its runs: in its own dtype, and in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil
import torch
from torch import Tensor, nn

from attnbench.errors import UsageError
from attnbench.oracle.references import NormEpsilon

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


def short(dtype: torch.dtype) -> str:
    """The name of a dtype without its module."""
    return str(dtype).removeprefix("torch.")


def run(way: Way, inputs: Tensors) -> Tensor:
    """The output in the way's own dtype."""
    with torch.no_grad():
        return way.call(way.module, way.given(inputs)).detach().clone()


def widened(way: Way, inputs: Tensors) -> tuple[nn.Module, list[Tensor]]:
    """The module and inputs in float64, with the values that the way's dtype holds.

    Raises:
        UsageError: the module does not fit into memory a second time.
    """
    given = [t.to(way.dtype).double() if t.is_floating_point() else t for t in inputs]
    needed = 8 * sum(parameter.numel() for parameter in way.module.parameters())
    free = psutil.virtual_memory().available
    if needed > free:
        raise UsageError(
            f"{way.name} needs {needed / 2**30:.1f} GiB for its weights in float64, and "
            f"{free / 2**30:.1f} GiB are free: compare a model with fewer layers."
        )
    return copy.deepcopy(way.module).double(), given


def run_wide(way: Way, inputs: Tensors) -> Tensor:
    """The output in float64."""
    module, given = widened(way, inputs)
    with torch.no_grad(), NormEpsilon(way.dtype):
        return way.call(module, given).detach().double()


def equal(one: Tensor, other: Tensor) -> bool:
    """Whether all elements are equal, NaN to NaN."""
    return one.shape == other.shape and bool(((one == other) | (one.isnan() & other.isnan())).all())
