"""The effect of rounding on a layer's output, which is the allowed difference of equal outputs.

A difference is compared with the change that one unit in the last place makes at every parameter,
at the hidden states, at every submodule's output and at every mean.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.invariants.toolkit.comparisons import reject
from attnbench.oracle.operations import RoundedMeans, nudged
from attnbench.subject.layer import LayerSubject
from attnbench.subject.tensors import largest

_UNITS, _DRAWS = 4.0, 16
"""How many of the largest changes are allowed, and of how many draws."""

_COARSE = 1e-4


def floor_of(subject: LayerSubject, expected: Tensor, dtype: torch.dtype | None = None) -> float:
    """The difference that is always allowed between equal outputs: some units of the largest value.

    Args:
        subject: a layer.
        expected: an output.
        dtype: dtype of the other output, if it is narrower.
    """
    eps = subject.eps(dtype or expected.dtype)
    units = 4 if eps > _COARSE else 32  # units of a half type are large
    return units * eps * max(largest(expected), 1e-30)


def copied(module: nn.Module, default: nn.Module | None = None) -> nn.Module:
    """A copy of a module, or the default if torch makes none.

    It makes none of a module that keeps a tensor with a graph, of which another invariant tells.
    Without a default the case is rejected.
    """
    try:
        return copy.deepcopy(module)
    except (Exception, SystemExit) as error:
        if default is not None:
            return default
        reject(f"the module cannot be copied ({type(error).__name__}), of which copies_agree tells")


def rounding_of(
    subject: LayerSubject,
    module: nn.Module,
    hidden: Tensor,
    padding_mask: Tensor | None = None,
    *,
    eps: float | None = None,
) -> Tensor:
    """The allowed error ``(B, L, 1)`` of the output of one call without a cache.

    Args:
        subject: the layer.
        module: its module, which is copied, or else left with the parameters that it had.
        hidden: ``(B, L, E)``.
        padding_mask: ``(B, L)``.
        eps: one relative unit in the last place; by default that of the dtype.
    """
    eps = subject.eps(hidden.dtype) if eps is None else eps
    signs, means = torch.Generator().manual_seed(0), RoundedMeans(eps)

    def moved(tensor: Tensor) -> Tensor:
        return nudged(tensor, eps, signs) if tensor.is_floating_point() else tensor

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return moved(output)
        if type(output) is tuple:
            return tuple(moved(o) if isinstance(o, Tensor) else o for o in output)
        return output

    with torch.no_grad():
        still, _ = subject.call(copied(module, module), hidden, padding_mask)
        largest = torch.zeros(still.shape, dtype=torch.float64)
        other = copied(module, module)
        hooks = [part.register_forward_hook(hook) for part in other.modules()]
        pairs = [(parameter, parameter.clone()) for parameter in other.parameters()]
        try:
            for _ in range(_DRAWS):
                for parameter, true in pairs:
                    parameter.copy_(moved(true))
                with means:
                    output, _ = subject.call(other, moved(hidden), padding_mask)
                change = (output.double() - still.double()).abs().nan_to_num(0.0).cpu()
                largest = torch.maximum(largest, change)
        finally:
            for parameter, true in pairs:
                parameter.copy_(true)
            for one in hooks:
                one.remove()
    return _UNITS * largest.amax(-1, keepdim=True) + floor_of(subject, still)
