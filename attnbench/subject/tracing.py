"""What happens inside a call: the output of each submodule and of each operation, in order."""

from __future__ import annotations

import functools
import linecache
import re
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.attention.torch_internals import OperationMode

_NOT_THEIRS = (
    Path(__file__).parents[1],
    Path(torch.__file__).parent,
    Path(sysconfig.get_path("stdlib")),
)
"""Folders of this package, torch and Python, whose lines say nothing to a reader."""

_CALLERS = tuple(Path(__file__).parents[1] / name for name in ("subject", "invariants", "checking"))
"""Where subjects are called: what is above it on the stack is not theirs."""

_RECORDERS = (Path(__file__).name, "recorded_operations.py")
"""Modules that only listen."""

_COPIES = re.compile(
    "clone|copy_|_to_copy|_unsafe_view|arange|scalar_tensor|(new_)?(zeros|ones|full|empty)(_like)?"
)
"""Operators that make or copy a tensor, and compute nothing."""


@dataclass(frozen=True)
class Operation:
    """One operation of a call.

    Args:
        name: its name, such as ``softmax``.
        where: ``file.py:line`` that called it, and the source of that line; ``""`` if unknown.
        output: its first result, copied.
    """

    name: str
    where: str
    output: Tensor

    @property
    def line(self) -> str:
        """The part that is the same whenever this line runs again."""
        return f"{self.name} at {self.where}"


@dataclass
class Trace:
    """What a call computed on its way.

    Attributes:
        modules: names of submodules, in the order in which they finished, with their outputs, one
            for each call.
        operations: the operations on floating-point tensors, in order.
    """

    modules: dict[str, list[Tensor]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)


@contextmanager
def traced(module: nn.Module) -> Iterator[Trace]:
    """Record what a module computes in the calls within.

    Args:
        module: the module; its submodules are recorded by their names.
    """
    trace = Trace()
    handles = []
    for name, part in module.named_modules():
        if name:
            handles.append(part.register_forward_hook(_note(trace, name)))
    try:
        with _Operations(trace.operations):
            yield trace
    finally:
        for handle in handles:
            handle.remove()


def _note(trace: Trace, name: str) -> Any:
    def hook(_: nn.Module, __: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple | list) and output else output
        if isinstance(first, Tensor) and first.is_floating_point():
            trace.modules.setdefault(name, []).append(first.detach().clone())

    return hook


class _Operations(OperationMode):
    """Record the results of operations; views and copies are left out."""

    def __init__(self, into: list[Operation]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.into = into

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple) and result else result
        computes = isinstance(first, Tensor) and first.is_floating_point() and first.numel() > 0
        name = name_of(func)
        if computes and not getattr(func, "is_view", False) and not _COPIES.fullmatch(name):
            self.into.append(Operation(name.strip("_"), calling_line(), first.detach().clone()))
        return result


def line_of(func: Any) -> str:
    """``name at file.py:line: source`` of an operation that is called; ``""`` if unknown."""
    place = calling_line()
    return f"{name_of(func).strip('_')} at {place}" if place else ""


def name_of(func: Any) -> str:
    """The name of an operator."""
    return func.overloadpacket.__name__ if hasattr(func, "overloadpacket") else str(func)


def calling_line() -> str:
    """The line outside torch and this package that called the operation."""
    frame: FrameType | None = sys._getframe(1)
    while frame and (whose := _whose(frame.f_code.co_filename)) != "a caller's":
        if whose == "theirs":
            file, number = frame.f_code.co_filename, frame.f_lineno
            line = linecache.getline(file, number, frame.f_globals).strip()
            return f"{Path(file).name}:{number}: {line}" if line else ""
        frame = frame.f_back
    return ""


@functools.cache
def _whose(file: str) -> str:
    """Whose lines are in a file: asked for each operation, and so kept."""
    path = Path(file)
    if path.name not in _RECORDERS and any(map(path.is_relative_to, _CALLERS)):
        return "a caller's"
    if file.startswith("<eval_with_key>") or any(map(path.is_relative_to, _NOT_THEIRS)):
        return "torch's"
    return "a caller's" if "<" in file else "theirs"
