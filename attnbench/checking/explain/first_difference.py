"""The first operation by which two calls of a subject part, or in which a value is lost.

A line is named only if the comparison holds once its operation gives what it gives in the other
call, or, where an output is not finite, once it gives zeros there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from attnbench.checking.explain.recorded_operations import Operation, operations_of
from attnbench.checking.explain.replay import Comparison, Row, SubjectCall, row_of
from attnbench.specs.clue import Clue

_ROUNDING = 64
"""Units in the last place by which two results may differ for the order of sums."""

_MOST_SOURCES = 12


def first_difference(comparison: Comparison) -> Clue | None:
    """The line by which what is compared goes wrong; ``None`` where the calls do not tell."""
    got, expected = comparison.got, comparison.expected
    with contextlib.suppress(Exception, SystemExit):  # what is run again may raise
        if got is None and getattr(comparison.violation, "got", 0) != getattr(
            comparison.violation, "got", 0
        ):
            lost = __row_of_nan(comparison)
            return None if lost is None else _lost(lost)
        if got is None or got.dim() == 0:
            return None
        one = row_of(got, comparison)
        if one is None:
            return None
        if not bool(got[comparison.at[:-1]].isfinite().all()):
            return _lost(one)
        other = None if expected is None else row_of(expected, comparison)
        if other is not None and other.call is not one.call:
            return _parting(one, other, comparison.allowed or 0.0)
    return None


def __row_of_nan(comparison: Comparison) -> Row | None:
    """The first call whose output holds NaN, and the first row of it that does."""
    for call in comparison.calls:
        if call.output is not None and call.output.dim() and bool(call.output.isnan().any()):
            return Row(call, tuple(call.output.isnan().any(-1).nonzero()[0].tolist()))
    return None


class _Alignment:
    """Which part of a result of the larger call a result of the smaller one corresponds to.

    Sizes of the outputs that differ say how the calls differ: one has an item, or a token, of
    several. Axes of their multiples, as of heads in a batch, are cut alike. Where all sizes are
    equal, other items may differ, and only the one that was compared has to agree.
    """

    def __init__(self, large: Row, small: Row) -> None:
        assert large.call.output is not None
        assert small.call.output is not None
        sizes = zip(large.call.output.shape[:-1], small.call.output.shape[:-1], strict=True)
        places = zip(large.place, small.place, strict=True)
        pairs = [(*size, a - b) for size, (a, b) in zip(sizes, places, strict=True)]
        self.cuts = [pair for pair in pairs if pair[0] != pair[1]]
        shape = large.call.output.shape[:-2]
        self.items = [] if self.cuts else list(zip(shape, large.place, strict=False))

    def own(self, tensor: Tensor) -> Tensor:
        """The part of a tensor that is of the compared item, where calls have the same items."""
        for axis, (count, place) in enumerate(self.items[: max(0, tensor.dim() - 2)]):
            if tensor.shape[axis] == count:
                tensor = tensor.narrow(axis, place, 1)
        return tensor

    def part(self, large: Tensor, small: Tensor) -> Tensor | None:
        """The part of a tensor that has the shape of another; ``None`` if there is none."""
        if large.dim() != small.dim() or large.dtype != small.dtype:
            return None
        for axis, (size, wanted) in enumerate(zip(large.shape, small.shape, strict=True)):
            if size == wanted:
                continue
            start = self._start(size, wanted)
            if start is None or start + wanted > size:
                return None
            large = large.narrow(axis, start, wanted)
        return large

    def _start(self, size: int, wanted: int) -> int | None:
        for own, other, offset in self.cuts:
            times = size // own
            if own * times == size and other * times == wanted and offset >= 0:
                return offset * times
        return None

    def agree(self, large: Operation, small: Operation) -> bool:
        """Whether two operations were given the same, as far as it can be laid side by side.

        A number that differs was computed on another line, without an operation.
        """
        if len(large.given) != len(small.given) or large.numbers != small.numbers:
            return False
        for one, other in zip(large.given, small.given, strict=True):
            part = self.part(one, other)
            if part is None or _differ(self.own(part), self.own(other)):
                return False
        return True


def _parting(got: Row, expected: Row, allowed: float) -> Clue | None:
    """The first operation that gives another result for the same, and has to give the other's."""
    outputs = [row.call.output for row in (got, expected)]
    if outputs[0] is None or outputs[1] is None or outputs[0].dim() != outputs[1].dim():
        return None
    is_larger = outputs[0].numel() >= outputs[1].numel()
    large, small = (got, expected) if is_larger else (expected, got)
    aligned = _Alignment(large, small)
    (whole, more), (part, less) = (operations_of(row.call) for row in (large, small))
    if not _is_same(whole, large.call) or not _is_same(part, small.call):
        return None
    assert whole is not None
    wanted = whole[large.place]
    found: list[tuple[int, Tensor]] = []
    for number, one, other in _paired(more, less):
        cut = aligned.part(one.result, other.result)
        if cut is None or (aligned.items and other.is_view):
            continue
        if _differ(*map(aligned.own, (cut, other.result))) and aligned.agree(one, other):
            found.append((number, cut))
    for number, cut in found[:_MOST_SOURCES]:
        output, _ = operations_of(small.call, {number: cut})
        if output is not None and _holds(output[small.place], wanted, allowed):
            return _clue(less[number], less[number].result, cut, is_larger)
    return None


def _paired(
    more: list[Operation], less: list[Operation]
) -> Iterator[tuple[int, Operation, Operation]]:
    """The operations of the smaller call with those of the same line in the larger, in order."""
    left: dict[str, list[Operation]] = {}
    for operation in more:
        left.setdefault(operation.line, []).append(operation)
    for number, operation in enumerate(less):
        same = left.get(operation.line)
        if same and operation.line:
            yield number, same.pop(0), operation


def _clue(operation: Operation, small: Tensor, large: Tensor, small_is_expected: bool) -> Clue:
    """The line of an operation, with a value that it gives in each of the calls."""
    place = tuple((small != large).nonzero()[0].tolist())
    values = small[place].item(), large[place].item()
    expected, got = values if small_is_expected else values[::-1]
    text = f"it goes wrong first in {operation.line}: {_shown(got)} where the other call has "
    return _with_place(text + _shown(expected), operation.line)


def _shown(value: float | bool) -> str:
    return str(value) if isinstance(value, bool | int) else f"{value:.4g}"


def _with_place(text: str, line: str) -> Clue:
    """A clue with the file and the number of a line, ``name at file.py:line: source``."""
    file, _, rest = line.partition(" at ")[2].partition(":")
    number = rest.partition(":")[0]
    return Clue(text=text, file=file, line=int(number)) if number.isdecimal() else Clue(text=text)


def _lost(row: Row) -> Clue | None:
    """The first operation that gives NaN or infinity for finite numbers, if zeros heal it."""
    output, operations = operations_of(row.call)
    if not _is_same(output, row.call):
        return None
    sources = [
        (number, operation)
        for number, operation in enumerate(operations)
        if operation.line and _loses(operation)
    ]
    for number, operation in sources[:_MOST_SOURCES]:
        healed, _ = operations_of(row.call, {number: operation.result.nan_to_num(0.0, 0.0, 0.0)})
        if healed is not None and bool(healed[row.place].isfinite().all()):
            what = "NaN" if bool(operation.result.isnan().any()) else "infinity"
            return _with_place(f"{what} arises first in {operation.line}", operation.line)
    return None


def _loses(operation: Operation) -> bool:
    """Whether an operation gives NaN for what holds none, or infinity for finite numbers."""
    if not operation.result.is_floating_point() or not operation.given:
        return False
    if bool(operation.result.isnan().any()):
        return not any(bool(t.isnan().any()) for t in operation.given if t.is_floating_point())
    is_fill = operation.line.startswith(("masked_fill", "where", "fill", "copy", "full", "add"))
    finite = all(bool(t.isfinite().all()) for t in operation.given if t.is_floating_point())
    return finite and not is_fill and bool(operation.result.isinf().any())


def _is_same(output: Tensor | None, call: SubjectCall) -> bool:
    """Whether a call that was made again gave what it gave before."""
    return output is not None and call.output is not None and not _differ(output, call.output)


def _differ(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape differ by more than rounding does."""
    if one.shape != other.shape:
        return True
    if not one.is_floating_point():
        return not torch.equal(one, other)
    a, b = one.double(), other.double()
    known = a.isfinite() & b.isfinite()
    if not torch.equal(
        a.masked_fill(known, 0.0).nan_to_num(9.0), b.masked_fill(known, 0.0).nan_to_num(9.0)
    ):
        return True
    if not bool(known.any()):
        return False
    size = max(float(a[known].abs().max()), float(b[known].abs().max()))
    return float((a - b)[known].abs().max()) > _ROUNDING * torch.finfo(one.dtype).eps * size


def _holds(got: Tensor, expected: Tensor, allowed: float) -> bool:
    """Whether two rows agree as the property asks, or as rounding allows."""
    gap = (got.double() - expected.double()).abs()
    return bool((gap <= allowed).all()) or not _differ(got, expected)
