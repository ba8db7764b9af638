"""Where the results of a call begin to be other than they should be.

A call is repeated with each wrong result put right at once, so that what follows has right inputs:
an operation that is put right then is one where an error begins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from attnbench.attention.torch_internals import OperationMode
from attnbench.subject.tracing import line_of

_SAME, _SAME_IN_DOUBLE = 1e-4, 1e-6
"""The relative difference of equal values, whatever the order of sums; float32 may be within."""


Number = tuple[Any, int]
"""An operator, and a number among the calls of this operator, from 1."""


class Key(NamedTuple):
    """An operation of a call.

    Args:
        line: ``name at file.py:line: source`` of code that is neither torch's nor this package's.
        number: how many of this line were before it.
    """

    line: str
    number: int


class Correction(OperationMode):
    """Notes the results of operations in the calls within, and puts wrong ones right.

    Args:
        right: gives what the result of an operation should be, ``None`` if that is unknown.

    Attributes:
        results: results by operation, in their order, before they are put right.
        given: by operation, the first tensor that it was given, if that has the result's shape.
        counts: how many operations each line has.
        numbers: the operator of each, and its number among the calls of this operator, from 1.
        origins: operations that were put right, with the one since which nothing is known of what
            they were given.
    """

    def __init__(self, right: Callable[[Key, Tensor], Tensor | None] = lambda *_: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.right = right
        self.results: dict[Key, Tensor] = {}
        self.given: dict[Key, Tensor] = {}
        self.numbers: dict[Key, Number] = {}
        self.origins: dict[Key, Key | None] = {}
        self.counts, self._calls = Counter[str](), Counter[Any]()
        self._unknown: dict[int, Key] = {}  # by memory, which is held
        self._held: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        own = given[0].clone() if given else None
        since = next(filter(None, (self._unknown.get(memory_of(one)) for one in given)), None)
        result = func(*args, **(kwargs or {}))
        self._calls[func] += 1
        first = result[0] if isinstance(result, tuple) and result else result
        if not isinstance(first, Tensor) or not first.numel() or not (line := line_of(func)):
            return result
        key, is_view = Key(line, self.counts[line]), bool(getattr(func, "is_view", False))
        self.counts[line] += 1
        self.results[key], self.numbers[key] = first.clone(), (func, self._calls[func])
        if own is not None and (own.shape, own.dtype) == (first.shape, first.dtype):
            self.given[key] = own
        value = self.right(key, first)
        if value is None:
            if not is_view:
                self._unknown[memory_of(first)] = since or key
                self._held.append(first)
            return result
        if not is_view:
            self._unknown.pop(memory_of(first), None)
        if not differ(first, value):
            return result
        self.origins[key] = since
        if is_view:  # what it shows is right where it lies
            return value
        first.copy_(value)
        return result

    def place(self, key: Key) -> str:
        """An operation, or the places between which something unknown leads to it, in words."""
        since, here = self.origins[key], key.line.partition(" at ")[2]
        if since is None:
            return f"in {key.line}"
        there = since.line.partition(" at ")[2]
        return f"at {here}" if there == here else f"between {there} and {here}"


class Maker(NamedTuple):
    """The operation that made a tensor, how many were before it, and the call that it is of."""

    before: int
    call: int
    key: Key


Given = tuple[Tensor, Maker | None]
"""What an operation is given, and what made that, if it is known."""


class Flow(Correction):  # type: ignore[no-untyped-call]  # torch has not typed it
    """Notes the results of operations in one of several calls, and what each was given.

    Args:
        call: the number of the call.
        made: by tensor, and by memory that was written to, what made it; of all calls.

    Attributes:
        made_of: by operation, what it was given.
    """

    def __init__(self, call: int, made: dict[Any, tuple[Maker, Tensor]]) -> None:
        super().__init__(lambda _, result: result)
        self.call, self.made = call, made
        self.made_of: dict[Key, list[Given]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        noted, before = [(one.clone(), self.maker(one)) for one in given], len(self.results)
        result = super().__torch_dispatch__(func, types, args, kwargs)
        maker = noted[0][1] if noted and getattr(func, "is_view", False) else None
        if len(self.results) > before:
            key = next(reversed(self.results))
            self.made_of[key], maker = noted, Maker(len(self.made), self.call, key)
        for one in tree_leaves(result) if maker else ():
            if maker and isinstance(one, Tensor):
                self.made[id(one)] = maker, one
                if any(one is other for other in given):
                    self.made["memory", memory_of(one)] = maker, one
        return result

    def maker(self, one: Tensor) -> Maker | None:
        """What made a tensor, or wrote to it last, if that is known."""
        places = (id(one), ("memory", memory_of(one)))
        makers = [self.made[place][0] for place in places if place in self.made]
        return max(makers, key=lambda maker: maker.before, default=None)


def differ(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of a shape differ by more than rounding.

    An entry for which that is more than 1, as in a mask, says nothing of the rounding of others.
    """
    if not one.is_floating_point():
        return not torch.equal(one, other)
    same = _SAME_IN_DOUBLE if one.dtype == torch.float64 else _SAME
    gaps, sizes = (t.abs() for t in (_finite(one) - _finite(other), _finite(other)))
    rest = sizes.where(same * sizes < 1, 0.0).amax()
    return bool((gaps > same * sizes.maximum(rest)).any())


def _finite(tensor: Tensor) -> Tensor:
    return tensor.double().nan_to_num(posinf=1e30, neginf=-1e30)


def memory_of(tensor: Tensor) -> int:
    """Where the memory of a tensor begins, which its views share."""
    return tensor.untyped_storage().data_ptr()
