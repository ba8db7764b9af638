"""The first line by which two calls of a subject part, or in which a value is lost.

The calls are made again, and their operations laid side by side: the first one of a line beside the
first one of it, and so on. A line is suspected if it gives other results for the same tensors, or
if one call alone runs it; and where the result is not finite, if it gives NaN or infinity for
finite numbers. It is named if what is compared holds once all that uses its results is given those
of the other call, or zeros.
"""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench import Clue, Subject
from attnbench.testing import Comparison, Row, replay, row_of
from attnbench_plugins.explaining.recorded_operations import Operation, Operations

_SECONDS = 2.0
_ROUNDING = 64.0
"""Units in the last place by which two results may differ for the order of sums."""

_MOST_TRIES = 16
"""Most suspects whose results are exchanged."""

_Use = tuple[int, int]
"""What uses a tensor: an operation of a call, by its number, and the place where it is given."""

_OUTPUT: _Use = (-1, 0)
"""The call itself, which returns it."""

_Suspect = tuple[Operation, dict[_Use, Tensor]]
"""What may be wrong, and which tensors are used in place of what it gives."""


def first_differences(subject: Subject, failures: Sequence[Any]) -> Iterator[Clue]:
    """The first difference of each of some failures that shows one, for two seconds."""
    until = time.process_time() + _SECONDS
    for failure in failures:
        clue = None
        # it may not fail in the same way again
        with contextlib.suppress(Exception, SystemExit):
            clue = first_difference(replay(subject, failure))
        if clue is not None and failure is not failures[0]:
            clue = replace(clue, text=f"in {failure.invariant}, {clue.text}")
        if clue is not None:
            yield clue
        if time.process_time() > until:
            return


def first_difference(comparison: Comparison) -> Clue | None:
    """The line by which what is compared goes wrong; ``None`` where the calls do not tell."""
    got = row_of(comparison.got, comparison) or _row_of_nan(comparison)
    if got is None:
        return None
    if not bool(got.output[got.place].isfinite().all()):
        whole = comparison.expected
        expected = None if whole is None or not whole.dim() else whole[comparison.at[:-1]]
        return _first_healing(_losing(got), got, expected, comparison.allowed or 0.0)
    other = row_of(comparison.expected, comparison)
    if other is None or other.call.number == got.call.number:
        return None
    small, large = sorted((other, got), key=lambda row: row.output.numel())
    suspects = _Pair(small, large).suspects()
    return _first_healing(suspects, small, large.output[large.place], comparison.allowed or 0.0)


def _row_of_nan(comparison: Comparison) -> Row | None:
    """The first call whose output holds NaN, and the first row of it that does."""
    value = getattr(comparison.violation, "got", None)
    for call in comparison.calls if value != value else ():
        output = call.outputs.get(0, torch.empty(0))
        if output.dim() and bool(output.isnan().any()):
            return Row(call, 0, tuple(output.isnan().any(-1).nonzero()[0].tolist()))
    return None


def _first_healing(
    suspects: list[_Suspect], row: Row, expected: Tensor | None, allowed: float
) -> Clue | None:
    """The first suspect without which a row is as expected, or finite if nothing is expected."""
    lost = not bool(row.output[row.place].isfinite().all())
    for operation, others in suspects[:_MOST_TRIES]:
        healed, *_ = _run_again(row, others)
        if _holds(healed[row.place], expected, allowed):
            what = "NaN" if bool(operation.output.isnan().any()) else "infinity"
            text = f"{what} arises first in" if lost else "it goes wrong first in"
            file, number, _ = operation.where.split(":", 2)
            return Clue(text=f"{text} {operation.line}", file=file, line=int(number))
    return None


def _run_again(
    row: Row, others: Mapping[_Use, Tensor] | None = None
) -> tuple[Tensor, list[Operation], int | None]:
    """The output of a call, made again, its operations, and the number of the last one.

    Args:
        row: a row of the output.
        others: tensors that are used in place of others.
    """
    mode = Operations(others)
    output = row.call.again(mode)[row.which]
    return mode.others.get(_OUTPUT, output.detach().clone()), mode.found, mode.number_of(output)


class _Pair:
    """Two calls side by side, the smaller one first, and how their operations correspond."""

    def __init__(self, small: Row, large: Row) -> None:
        self.rows = small, large
        self.outputs, self.operations, self.last = zip(*map(_run_again, self.rows), strict=True)
        self.starts = _starts(small, large)
        self.partners = dict(self._paired())
        self.agree = dict[int | None, bool](), dict[int | None, bool]()
        for number, partner in self.partners.items():
            outputs = self.operations[0][number].output, self.operations[1][partner].output
            self.agree[0][number] = self.agree[1][partner] = self._agree(*outputs)
        self.alone = self._made_alone(0), self._made_alone(1)

    def suspects(self) -> list[_Suspect]:
        """Lines that may be wrong, and what the smaller call uses in place of what they give."""
        found = dict[str, _Suspect]()
        for use, mine, theirs, sources in self._uses() if self._is_comparable() else ():
            part = self._part(theirs, mine)
            if part is not None and _differ(part, mine):
                origin = self._origin(*sources)
                if origin is not None:
                    found.setdefault(origin.where, (origin, {}))[1][use] = part
        return [*found.values()]

    def _uses(self) -> Iterator[tuple[_Use, Tensor, Tensor, tuple[int | None, int | None]]]:
        """What both calls use alike, as each has it, and which operations of theirs gave it."""
        for small, large in self.partners.items():
            one, other = self.operations[0][small], self.operations[1][large]
            operands = zip(one.given, other.given, one.sources, other.sources, strict=False)
            for place, (mine, theirs, *sources) in enumerate(operands):
                yield (small, place), mine, theirs, (sources[0], sources[1])
        yield _OUTPUT, self.outputs[0], self.outputs[1], (self.last[0], self.last[1])

    def _is_comparable(self) -> bool:
        """Whether both calls gave again what they gave, in one dtype, for one first argument."""
        again = zip(self.outputs, self.rows, strict=True)
        firsts = zip(*(row.call.tensors[:1] for row in self.rows), strict=False)
        return (
            self.outputs[0].dtype == self.outputs[1].dtype
            and not any(_differ(one, row.output) for one, row in again)
            and all(self._agree(*first) for first in firsts)
        )

    def _origin(self, small: int | None, large: int | None) -> Operation | None:
        """The operation by whose line the results of two operations differ, if it is one line.

        That is their own one, if both calls make it and give it the same, or else the only one of
        all that one call alone computes for them.
        """
        if small in self.partners and self.partners[small] == large:
            one, other = self.operations[0][small], self.operations[1][large]
            is_alike = len(one.given) == len(other.given)
            return one if is_alike and all(map(self._agree, one.given, other.given)) else None
        lines = {**self.alone[0].get(small, {}), **self.alone[1].get(large, {})}
        return next(iter(lines.values())) if len(lines) == 1 and "" not in lines else None

    def _made_alone(self, side: int) -> dict[int | None, dict[str, Operation]]:
        """The lines of all that one call alone computes for what it makes alone, by its number.

        What comes of numbers that differ already, or that an earlier call left, is no line's; but
        whole ones may differ, as positions do.
        """
        found = dict[int | None, dict[str, Operation]]()
        known, agree = self.rows[side].call.known_tensors, self.agree[side]
        for number, operation in enumerate(self.operations[side]):
            if number in agree:
                continue
            own = found[number] = dict[str, Operation]()
            for tensor, source in zip(operation.given, operation.sources, strict=False):
                own.update(found.get(source, {}))
                is_clear = not tensor.is_floating_point() or agree.get(source, True)
                if source is None:
                    is_clear = any(torch.equal(tensor, one) for one in known)
                if not is_clear:
                    own[""] = operation
            own[operation.where] = operation
        return found

    def _paired(self) -> Iterator[tuple[int, int]]:
        """The operations of the calls that the same line makes, in the order of the smaller one."""
        left: dict[str, list[int]] = defaultdict(list)
        for number, operation in enumerate(self.operations[1]):
            left[operation.line].append(number)
        for number, operation in enumerate(self.operations[0]):
            if operation.line and left[operation.line]:
                yield number, left[operation.line].pop(0)

    def _agree(self, small: Tensor, large: Tensor) -> bool:
        part = self._part(large, small)
        return part is not None and not _differ(part, small)

    def _part(self, large: Tensor, small: Tensor) -> Tensor | None:
        """The part of a tensor that corresponds to one of the smaller call; ``None`` if none."""
        if large.dim() != small.dim() or large.is_floating_point() != small.is_floating_point():
            return None
        for axis, (size, wanted) in enumerate(zip(large.shape, small.shape, strict=True)):
            if size == wanted:
                continue
            start = self.starts.get((size, wanted))
            if start is None:
                return None
            large = large.narrow(axis, start, wanted)
        return large


def _starts(small: Row, large: Row) -> dict[tuple[int, int], int]:
    """Where on an axis the smaller call begins, by the sizes of that axis in both.

    The outputs, and the places in them that are compared, say which items and tokens these are.
    """
    shapes = large.output.shape[:-1], small.output.shape[:-1]
    found = {}
    for size, wanted, place, other in zip(*shapes, large.place, small.place, strict=True):
        if size != wanted and 0 <= place - other <= size - wanted:
            found[size, wanted] = place - other
    return found


def _differ(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors differ by more than rounding does."""
    if one.shape != other.shape or not (one.is_floating_point() and other.is_floating_point()):
        return not torch.equal(one, other)
    eps = max(torch.finfo(each.dtype).eps for each in (one, other))
    a, b = one.double(), other.double()
    finite = torch.cat([a[a.isfinite()], b[b.isfinite()]]).abs()
    allowed = _ROUNDING * eps * float(finite.max()) if finite.numel() else 0.0
    return not torch.allclose(a, b, rtol=0.0, atol=allowed, equal_nan=True)


def _holds(row: Tensor, expected: Tensor | None, allowed: float) -> bool:
    """Whether a row is what is expected, as the property or rounding allows, or else finite."""
    if expected is None:
        return bool(row.isfinite().all())
    gap = (row.double() - expected.double()).abs()
    return bool((gap <= allowed).all()) or not _differ(row, expected)


def _losing(row: Row) -> list[_Suspect]:
    """The operations of a call that lose a value, and zeros for what they give."""
    output, operations, last = _run_again(row)
    uses = [(_OUTPUT, output, last)]
    for number, operation in enumerate(operations):
        operands = zip(operation.given, operation.sources, strict=False)
        uses += [((number, place), *operand) for place, operand in enumerate(operands)]
    return [
        (one, {use: t.nan_to_num(0.0, 0.0, 0.0) for use, t, source in uses if source == number})
        for number, one in enumerate(operations)
        if one.line and _loses(one)
    ]


def _loses(operation: Operation) -> bool:
    """Whether an operation gives NaN for what holds none, or infinity for finite numbers."""
    given = [tensor for tensor in operation.given if tensor.is_floating_point()]
    if not operation.output.is_floating_point() or not operation.given:
        return False
    if bool(operation.output.isnan().any()):
        return not any(bool(tensor.isnan().any()) for tensor in given)
    finite = all(bool(tensor.isfinite().all()) for tensor in given)
    return finite and bool(operation.output.isinf().any())
