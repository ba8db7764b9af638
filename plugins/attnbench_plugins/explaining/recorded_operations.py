"""What happens inside a call: its operations, each with what it was given and what it gave."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from attnbench.styles import OperationMode
from attnbench.testing import is_own_code

_CALLERS = ("attnbench.subject", "attnbench.invariants", "attnbench.checking")
"""Where subjects are called: what is above it on the stack is not theirs."""

_ARITHMETIC = ("add", "sub", "rsub", "mul", "div", "pow", "remainder")
"""Operations whose whole numbers are no sizes or axes."""

_MOST = 1500
"""Operations of a call, from which on none are kept for a comparison with another call."""


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of a call.

    Args:
        name: its name, such as ``softmax``.
        where: ``file.py:line: source`` of the user's line that called it; ``""`` if unknown.
        output: a copy of its first result.
        given: copies of the tensors that it was given, if they are kept, and then the numbers, but
            for sizes and axes, as tensors.
        sources: for each of the former the number of the operation that gave it, or ``None``.
        is_view: whether it only lays out again what it was given.
    """

    name: str
    where: str
    output: Tensor
    given: tuple[Tensor, ...]
    sources: tuple[int | None, ...]
    is_view: bool

    @property
    def line(self) -> str:
        """The part that is the same whenever this line runs again."""
        return f"{self.name} at {self.where}" if self.where else ""


class Operations(OperationMode):
    """Records the operations of a call, and gives some of them other tensors.

    Args:
        others: tensors to give, by the number of the operation and their places.
        keeps_given: whether to keep copies of what they are given, of the first ones alone.
    """

    def __init__(
        self, others: Mapping[tuple[int, int], Tensor] | None = None, *, keeps_given: bool = True
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.others, self.keeps_given = others or {}, keeps_given
        self.found: list[Operation] = []
        self._sources: dict[int, tuple[Tensor, int]] = {}  # alive, so that no id is used twice

    def number_of(self, tensor: Tensor) -> int | None:
        """The number of the operation that gave a tensor; ``None`` if none did."""
        return self._sources.get(id(tensor), (None, None))[1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and record it."""
        called = func.overloadpacket.__name__ if hasattr(func, "overloadpacket") else str(func)
        name = called.strip("_")
        number, (leaves, layout) = len(self.found), tree_flatten((args, kwargs or {}))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        given, sources = self._kept(func, name, leaves), tuple(map(self.number_of, tensors))
        for place, tensor in enumerate(tensors):
            other = self.others.get((number, place))
            if other is not None and called.endswith("_"):
                tensor.copy_(other)
            elif other is not None:
                leaves = [other.to(tensor.dtype) if leaf is tensor else leaf for leaf in leaves]
        args, kwargs = tree_unflatten(leaves, layout)
        result = func(*args, **kwargs)
        first = result[0] if isinstance(result, tuple | list) and result else result
        if not isinstance(first, Tensor) or (self.keeps_given and number >= _MOST):
            return result
        is_view, copy = bool(getattr(func, "is_view", False)), first.detach().clone()
        self.found.append(Operation(name, _calling_line(), copy, given, sources, is_view))
        for one in tree_leaves(result) if self.keeps_given else ():
            if isinstance(one, Tensor):
                self._sources[id(one)] = one, number
        return result

    def _kept(self, func: Any, name: str, leaves: list[Any]) -> tuple[Tensor, ...]:
        """Copies of the tensors among some arguments, and the numbers as tensors."""
        if not self.keeps_given:
            return ()
        begins = str(getattr(func, "_overloadname", "")).startswith("start")  # of a range
        kinds = float | int if begins or name in _ARITHMETIC else float
        numbers = [leaf for leaf in leaves[: 1 if begins else None] if isinstance(leaf, kinds)]
        tensors = [leaf.detach().clone() for leaf in leaves if isinstance(leaf, Tensor)]
        return *tensors, *(torch.tensor(one, dtype=torch.float64) for one in numbers)


def _calling_line() -> str:
    """The line outside torch and this package that called the operation."""
    frame: FrameType | None = sys._getframe(2)
    while frame and not str(frame.f_globals.get("__name__")).startswith(_CALLERS):
        file, number = frame.f_code.co_filename, frame.f_lineno
        if is_own_code(file):
            line = linecache.getline(file, number, frame.f_globals).strip()
            return f"{Path(file).name}:{number}: {line}" if line else ""
        frame = frame.f_back
    return ""
