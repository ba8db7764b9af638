"""What happens inside a call: its operations, each with what it was given and what it gave."""

from __future__ import annotations

import functools
import linecache
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnbench.attention.torch_internals import OperationMode

_HOME = Path(__file__).parents[2]

_NOT_THEIRS = (_HOME, Path(torch.__file__).parent, Path(sysconfig.get_path("stdlib")))
"""Folders of this package, torch and Python, whose lines say nothing to a reader."""

_CALLERS = tuple(_HOME / name for name in ("subject", "invariants", "checking"))
"""Where subjects are called: what is above it on the stack is not theirs."""

_LAYING_OUT = ("bitwise", "logical", "to_copy", "clone", "expand", "detach", "masked_fill")
"""Operations, beside views, that compute nothing of their own."""

_ARITHMETIC = ("add", "sub", "rsub", "mul", "div", "pow", "remainder")
"""Operations whose whole numbers are no sizes or axes."""

_MOST = 1500
"""Operations of a call, from which on none are kept for a comparison with another call."""


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of a call.

    Args:
        operator: the name of its operator, such as ``softmax`` or ``add_``.
        where: ``file.py:line: source`` of the user's line that called it; ``""`` if unknown.
        output: a copy of its first result.
        given: copies of the tensors that it was given, if they are kept.
        sources: for each of them the number of the operation that gave it, or ``None``.
        numbers: the numbers that it was given beside them, but for sizes and axes.
        is_view: whether it only lays out again what it was given.
    """

    operator: str
    where: str
    output: Tensor
    given: tuple[Tensor, ...]
    sources: tuple[int | None, ...]
    numbers: tuple[float, ...]
    is_view: bool

    @property
    def name(self) -> str:
        """Its name, such as ``softmax``."""
        return self.operator.strip("_")

    @property
    def line(self) -> str:
        """The part that is the same whenever this line runs again."""
        return f"{self.name} at {self.where}" if self.where else ""

    @property
    def lays_out(self) -> bool:
        """Whether it lays out all that it is given, or joins it, and computes nothing itself."""
        is_whole = self.is_view and self.output.numel() >= self.given[0].numel()
        return is_whole or self.name.startswith(_LAYING_OUT)


class Operations(OperationMode):
    """Records the operations of a call, and gives some of them other results.

    Args:
        results: results to give, by the number of the operation.
        keeps_given: whether to keep copies of what they are given, of the first ones alone.
    """

    def __init__(
        self, results: Mapping[int, Tensor] | None = None, *, keeps_given: bool = True
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.results, self.keeps_given = results or {}, keeps_given
        self.found: list[Operation] = []
        self._sources: dict[int, tuple[Tensor, int]] = {}  # alive, so that no id is used twice

    def number_of(self, tensor: Tensor) -> int | None:
        """The number of the operation that gave a tensor; ``None`` if none did."""
        return self._sources.get(id(tensor), (None, None))[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and record it."""
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        given = tuple(t.detach().clone() for t in tensors if self.keeps_given)
        sources = tuple(map(self.number_of, tensors))
        name = func.overloadpacket.__name__ if hasattr(func, "overloadpacket") else str(func)
        kinds = float | int if name.strip("_") in _ARITHMETIC else float
        begins = str(getattr(func, "_overloadname", "")).startswith("start")  # of a range
        numbers = tuple(x for x in leaves if isinstance(x, kinds)) + tuple(args[:1] * begins)
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple | list) and result else result
        number = len(self.found)
        if not isinstance(first, Tensor) or (self.keeps_given and number >= _MOST):
            return result
        if number in self.results:
            other = self.results[number]
            if any(first is one for one in tensors):  # in place
                first.copy_(other)
            elif result is first:
                result = first = other.to(first.dtype)
        is_view, kept = bool(getattr(func, "is_view", False)), first.detach().clone()
        where = calling_line()
        self.found.append(Operation(name, where, kept, given, sources, numbers, is_view))
        for one in tree_leaves(result) if self.keeps_given else ():
            if isinstance(one, Tensor):
                self._sources[id(one)] = one, number
        return result


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
    if path != Path(__file__) and any(map(path.is_relative_to, _CALLERS)):
        return "a caller's"
    if file.startswith("<eval_with_key>") or any(map(path.is_relative_to, _NOT_THEIRS)):
        return "torch's"
    return "a caller's" if "<" in file else "theirs"
