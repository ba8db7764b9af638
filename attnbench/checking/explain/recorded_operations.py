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

_MOST = 4000
"""Operations of a call, from which on none are kept."""


@dataclass(frozen=True)
class Operation:
    """One operation of a call.

    Args:
        line: ``name at file.py:line: source``; ``""`` for one that no line of the user calls.
        given: copies of the tensors that it was given.
        numbers: the numbers that it was given beside them.
        result: a copy of its first result.
        is_view: whether it only lays out again what it was given.
    """

    line: str
    given: tuple[Tensor, ...]
    numbers: tuple[float, ...]
    result: Tensor
    is_view: bool = False


class Operations(OperationMode):
    """Records the operations of a call, and gives some of them other results.

    Args:
        results: results to give, by the number of the operation.
    """

    def __init__(self, results: Mapping[int, Tensor] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.results = results or {}
        self.found: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and record it."""
        leaves = tree_leaves((args, kwargs))
        given = tuple(t.detach().clone() for t in leaves if isinstance(t, Tensor))
        numbers = tuple(leaf for leaf in leaves if isinstance(leaf, float))
        result = func(*args, **(kwargs or {}))
        first = result[0] if isinstance(result, tuple | list) and result else result
        if isinstance(first, Tensor) and len(self.found) < _MOST:
            other = self.results.get(len(self.found))
            if other is not None:
                first.copy_(other)
            is_view = bool(getattr(func, "is_view", False))
            self.found.append(
                Operation(line_of(func), given, numbers, first.detach().clone(), is_view)
            )
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
    with mode:
        output = call.again()
    return None if output is None else output.detach().clone(), mode.found
