"""Operations done a little otherwise: the next diagonal, a slice one further on, another axis."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench.attention.torch_internals import OperationMode
from attnbench.invariants.toolkit.origins import Key, Number
from attnbench.subject.tracing import line_of, name_of

HIDES_NOTHING = "hides nothing"
"""The way in which a mask counts for nothing."""

_HIDES = -50.0
"""Numbers below hide what they are added to, or take the place of."""

Operation = Callable[..., Any]
_Ways = Iterator[tuple[str, Callable[[], Tensor]]]


class OtherOperations(OperationMode):
    """Notes how the operations in the calls within could be done otherwise.

    Attributes:
        ways: in words, by operation, each with what does it so.
        numbers: the operator of each, and its number among the calls of this operator, from 1.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.ways: dict[Key, dict[str, Operation]] = {}
        self.numbers: dict[Key, Number] = {}
        self._counts, self._calls = Counter[str](), Counter[Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._calls[func] += 1
        others = _OTHERS.get(name_of(func))
        words = [way for way, _ in others(func, *args, **(kwargs or {}))] if others else []
        if others and words and (line := line_of(func)):
            key = Key(line, self._counts[line])
            self._counts[line] += 1
            self.ways[key] = {way: _done(others, way) for way in words}
            self.numbers[key] = func, self._calls[func]
        return func(*args, **(kwargs or {}))


class Replaced(OperationMode):
    """Lets some of the operations in the calls within be done by others.

    Args:
        others: by the number of the operation, what does it, and gets what the operation is and
            what it is given.
    """

    def __init__(self, others: Mapping[Number, Operation]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self._others, self._calls = others, Counter[Any]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._calls[func] += 1
        other = self._others.get((func, self._calls[func]))
        return (functools.partial(other, func) if other else func)(*args, **(kwargs or {}))


def given(value: Tensor) -> Operation:
    """An operation that gives a value, which lies where its own result would if it can."""

    def other(func: Any, *args: Any, **kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        first = result[0] if isinstance(result, tuple) else result
        # what a view shows is left as it is, and another dtype would round the value
        is_view, is_alike = getattr(func, "is_view", False), first.shape == value.shape
        if is_view or first.dtype != value.dtype or not is_alike:
            new = value.clone()  # one that is itself a view cannot be returned here
            return (new, *result[1:]) if isinstance(result, tuple) else new
        first.copy_(value)
        return result

    return other


def _done(others: Callable[..., _Ways], way: str) -> Operation:
    return lambda func, *args, **kwargs: dict(others(func, *args, **kwargs))[way]()


def _diagonals(func: Any, matrix: Tensor, diagonal: int = 0) -> _Ways:
    for words, more in (("has its diagonal one lower", -1), ("has its diagonal one higher", 1)):
        yield words, functools.partial(func, matrix, diagonal + more)


def _slices(
    func: Any, whole: Tensor, axis: int = 0, start: int | None = None, *more: int | None
) -> _Ways:
    size = whole.shape[axis]
    first, last, step = slice(start, *more).indices(size)
    if step != 1 or not first < last:
        return
    if last < size:
        yield "begins one further on", functools.partial(func, whole, axis, first + 1, last + 1)
    if first > 0:
        yield "begins one earlier", functools.partial(func, whole, axis, first - 1, last - 1)


def _turns(func: Any, whole: Tensor, shifts: list[int], dims: Any = ()) -> _Ways:
    yield "goes the other way", functools.partial(func, whole, [-n for n in shifts], dims)


def _axes(func: Any, whole: Tensor, axis: int, *more: Any, **options: Any) -> _Ways:
    for other in range(-whole.dim(), 0):
        if other % whole.dim() != axis % whole.dim() and whole.shape[other] > 1:
            words = f"is taken along axis {other} instead of {axis % whole.dim() - whole.dim()}"
            yield words, functools.partial(func, whole, other, *more, **options)


def _bounds(func: Any, one: Tensor, other: Any) -> _Ways:
    if not one.is_floating_point() and one.dtype != torch.bool:
        of, words = _BOUNDS[name_of(func)]
        yield words, functools.partial(of, one, other)


def _opposite(func: Any, *given: Any, **options: Any) -> _Ways:
    result = func(*given, **options)
    if isinstance(result, Tensor) and result.dtype != torch.bool:
        yield "is multiplied by -1", result.neg


def hides(value: Any) -> bool:
    """Whether a score is replaced by one number that hides it."""
    value = torch.as_tensor(value)
    return value.numel() == 1 and bool((value.real < _HIDES).all())


def _unmasked(func: Any, scores: Tensor, mask: Tensor, value: Any) -> _Ways:
    if mask.dtype == torch.bool and hides(value):
        yield HIDES_NOTHING, scores.expand_as(func(scores, mask, value)).clone


def _unchosen(func: Any, mask: Tensor, one: Any, other: Any) -> _Ways:
    scores = [t for t in (one, other) if isinstance(t, Tensor) and t.numel() > 1]
    if mask.dtype == torch.bool and len(scores) == 1 and (hides(one) or hides(other)):
        yield HIDES_NOTHING, scores[0].expand_as(func(mask, one, other)).clone


def _unadded(func: Any, scores: Tensor, mask: Any, **options: Any) -> _Ways:
    if isinstance(mask, Tensor) and mask.is_floating_point() and mask.numel() > 1:
        shown = mask == 0
        if (
            bool(shown.any())
            and bool((mask < _HIDES).any())
            and bool((shown | (mask < _HIDES)).all())
        ):
            yield HIDES_NOTHING, scores.expand_as(func(scores, mask, **options)).clone


def _exchanged(func: Any, parts: list[Tensor], axis: int = 0) -> _Ways:
    if len(parts) == 2:
        yield "has its two parts in the opposite order", functools.partial(func, parts[::-1], axis)


def _repeated(func: Any, whole: Tensor, counts: list[int]) -> _Ways:
    axes = [axis - len(counts) for axis, count in enumerate(counts) if count > 1]
    if len(axes) == 1 and len(counts) == whole.dim():
        words = "repeats each part in place, as repeat_interleave does"
        yield words, functools.partial(whole.repeat_interleave, counts[axes[0]], axes[0])


_BOUNDS: Mapping[str, tuple[Callable[..., Tensor], str]] = {
    "lt": (torch.le, "counts the bound itself (<=)"),
    "le": (torch.lt, "does not count the bound itself (<)"),
    "gt": (torch.ge, "counts the bound itself (>=)"),
    "ge": (torch.gt, "does not count the bound itself (>)"),
}

_OTHERS: Mapping[str, Callable[..., _Ways]] = {
    **dict.fromkeys(("tril", "triu"), _diagonals),
    **dict.fromkeys(("_softmax", "cumsum"), _axes),
    **dict.fromkeys(_BOUNDS, _bounds),
    **dict.fromkeys(("sub", "neg", "sin"), _opposite),
    "masked_fill": _unmasked,
    "where": _unchosen,
    "add": _unadded,
    "slice": _slices,
    "roll": _turns,
    "cat": _exchanged,
    "repeat": _repeated,
}
