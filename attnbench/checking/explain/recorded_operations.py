"""The operations of a call, each with what it was given and what it gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnbench.attention.torch_internals import OperationMode
from attnbench.checking.explain.replay import SubjectCall
from attnbench.subject.tracing import line_of

_MOST = 1500
"""Operations of a call, from which on none are kept."""


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation of a call.

    Args:
        line: ``name at file.py:line: source``; ``""`` for one that no line of the user calls.
        given: copies of the tensors that it was given.
        sources: for each of them the number of the operation that gave it, or ``None``.
        numbers: the numbers that it was given beside them, but for sizes and axes.
        result: a copy of its first result.
        is_view: whether it only lays out again what it was given.
        is_write: whether it changes the first tensor that it was given.
    """

    line: str
    given: tuple[Tensor, ...]
    sources: tuple[int | None, ...]
    numbers: tuple[float, ...]
    result: Tensor
    is_view: bool
    is_write: bool


class Operations(OperationMode):
    """Records the operations of a call, and gives some of them other results.

    Args:
        results: results to give, by the number of the operation.
    """

    def __init__(self, results: Mapping[int, Tensor] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.results = results or {}
        self.found: list[Operation] = []
        self._kept: list[Tensor] = []  # alive, so that no id is used twice
        self._sources: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and record it."""
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        given = tuple(t.detach().clone() for t in tensors)
        sources = tuple(self._sources.get(id(t)) for t in tensors)
        begins = str(getattr(func, "_overloadname", "")).startswith("start")  # of a range
        numbers = tuple(x for x in leaves if isinstance(x, float)) + tuple(args[:1] * begins)
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple | list) and result else result
        number = len(self.found)
        if not isinstance(first, Tensor) or number >= _MOST:
            return result
        if number in self.results:
            other = self.results[number]
            if any(first is one for one in tensors):  # in place
                first.copy_(other)
            elif result is first:
                result = first = other.to(first.dtype)
        is_view = bool(getattr(func, "is_view", False))
        is_write = bool(tensors) and first is tensors[0]
        kept = first.detach().clone()
        line = line_of(func)
        self.found.append(Operation(line, given, sources, numbers, kept, is_view, is_write))
        for one in tree_leaves(result):
            if isinstance(one, Tensor):
                self._kept.append(one)
                self._sources[id(one)] = number
        return result


def operations_of(
    call: SubjectCall, results: Mapping[int, Tensor] | None = None
) -> tuple[Tensor | None, list[Operation]]:
    """The output of a call that is made again, and its operations.

    Args:
        call: the call.
        results: results that take the place of those of some operations, by their numbers.
    """
    mode = Operations(results)
    output = call.again(mode)
    return None if output is None else output.detach().clone(), mode.found
