"""What a module computes on its way: the outputs of its submodules, and its operations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from attnbench.testing import Operations

_COPIES = re.compile(
    "clone|copy|to_copy|unsafe_view|arange|scalar_tensor|(new_)?(zeros|ones|full|empty)(_like)?"
)
"""Operations that make or copy a tensor, and compute nothing."""


@dataclass
class Trace:
    """What a call computed on its way.

    Attributes:
        modules: names of submodules, in the order in which they finished, with their outputs, one
            for each call.
        operations: the operations that compute floating-point numbers of their own, in order.
    """

    modules: dict[str, list[Tensor]] = field(default_factory=dict)
    operations: list[Any] = field(default_factory=list)


@contextmanager
def traced(module: nn.Module) -> Iterator[Trace]:
    """Record what a module computes in the calls within.

    Args:
        module: the module; its submodules are recorded by their names.
    """
    trace, mode = Trace(), Operations(keeps_given=False)
    parts = [(name, part) for name, part in module.named_modules() if name]
    handles = [part.register_forward_hook(partial(_note, trace, name)) for name, part in parts]
    try:
        with mode:
            yield trace
    finally:
        trace.operations += filter(_computes, mode.found)
        for handle in handles:
            handle.remove()


def _computes(operation: Any) -> bool:
    """Whether it computes numbers of its own, and neither makes, copies nor lays them out."""
    output: Tensor = operation.output
    is_number = output.is_floating_point() and output.numel() > 0
    return is_number and not operation.is_view and not _COPIES.fullmatch(operation.name)


def _note(trace: Trace, name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
    first = output[0] if isinstance(output, tuple | list) and output else output
    if isinstance(first, Tensor) and first.is_floating_point():
        trace.modules.setdefault(name, []).append(first.detach().clone())
