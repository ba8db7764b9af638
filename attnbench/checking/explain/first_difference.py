"""The first operation by which two calls of a subject part, or in which a value is lost.

Both calls are made again, and their operations laid side by side. A line is named only if the
comparison holds once its operation gives what the other call shows, or, where an output is not
finite, once it gives zeros there.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnbench.checking.explain.recorded_operations import Operation, Operations
from attnbench.checking.explain.replay import Comparison, Row, row_of
from attnbench.specs.extensions import Clue

_ROUNDING = 64.0
"""Units in the last place by which two results may differ for the order of sums."""

_MOST_TRIES = 16
"""Most operations that are given another result."""

_MOST_BLOCKS = 4
"""Most runs of a line in a call that are given another result."""


def first_difference(comparison: Comparison) -> Clue | None:
    """The line by which what is compared goes wrong; ``None`` where the calls do not tell."""
    with contextlib.suppress(Exception, SystemExit):  # what is run again may raise
        one = row_of(comparison.got, comparison) or _row_of_nan(comparison)
        if one is None:
            return None
        if not bool(one.output[one.place].isfinite().all()):
            return _lost(one, comparison)
        other = row_of(comparison.expected, comparison)
        if other is not None and other.call.number != one.call.number:
            return _parting(one, other, comparison.allowed or 0.0)
    return None


def _row_of_nan(comparison: Comparison) -> Row | None:
    """The first call whose output holds NaN, and the first row of it that does."""
    value = getattr(comparison.violation, "got", None)
    for call in comparison.calls if value != value else ():
        output = call.outputs.get(0, torch.empty(0))
        if output.dim() and bool(output.isnan().any()):
            return Row(call, 0, tuple(output.isnan().any(-1).nonzero()[0].tolist()))
    return None


def _parting(got: Row, expected: Row, allowed: float) -> Clue | None:
    """The line by which two calls part: what it gives in one heals the other, wherever it runs."""
    if got.output.dim() != expected.output.dim():
        return None
    rows = (got, expected) if _size(got) >= _size(expected) else (expected, got)
    pair, tried = _Pair(rows, allowed), set[tuple[int, str]]()
    for suspect in pair.suspects() if pair.is_comparable else ():
        run = suspect.side, pair.operations[suspect.side][suspect.number].line
        if run not in tried and len(tried) < _MOST_TRIES:
            tried.add(run)
            if pair.is_healed(suspect):
                return _told("it goes wrong first in", suspect.named)
    return None


def _size(row: Row) -> int:
    return row.output.numel() + sum(tensor.numel() for tensor in row.call.tensors)


def _run_again(
    row: Row, results: Mapping[int, Tensor] | None = None
) -> tuple[Tensor, list[Operation], int | None]:
    """The output of the call of a row, made again, its operations, and the number of the last.

    Args:
        row: a row of the output.
        results: results that take the place of those of some operations, by their numbers.
    """
    mode = Operations(results)
    output = row.call.again(mode)[row.which]
    return output.detach().clone(), mode.found, mode.number_of(output)


class Suspect(NamedTuple):
    """An operation that may be wrong.

    Args:
        side: 0 if the larger call makes it, 1 if the smaller one does.
        number: its number there.
        value: what the other call shows that it should give.
        named: the operation that is named if it is: itself, or one before it.
    """

    side: int
    number: int
    value: Tensor
    named: Operation


class _Pair:
    """Two calls side by side, the larger one first, and how their operations correspond.

    Args:
        rows: what is compared of them.
        allowed: how much these may differ.
        healed: for each of them, other results of some of its operations.
    """

    def __init__(
        self, rows: tuple[Row, Row], allowed: float, healed: Sequence[dict[int, Tensor]] = ({}, {})
    ) -> None:
        self.rows, self.allowed = rows, allowed
        found = [_run_again(row, own) for row, own in zip(rows, healed, strict=True)]
        self.outputs, self.operations, self.last = zip(*found, strict=True)
        self.places = _places(*rows)
        self.partners = list(self._paired())
        self.known = [{pair[side] for pair in self.partners} for side in (0, 1)]

    @property
    def is_comparable(self) -> bool:
        """Whether both calls gave again what they gave, and of one first argument."""
        again = zip(self.outputs, self.rows, strict=True)
        firsts = zip(*(row.call.tensors[:1] for row in self.rows), strict=False)
        return not any(_differ(one, row.output) for one, row in again) and all(
            self._agree(*first) for first in firsts
        )

    @property
    def agrees(self) -> bool:
        """Whether what is compared agrees as the property asks, or as rounding allows."""
        one, two = (out[row.place] for out, row in zip(self.outputs, self.rows, strict=True))
        return _holds(one, two, self.allowed)

    def is_healed(self, suspect: Suspect) -> bool:
        """Whether the calls agree if an operation, wherever its line runs, gives the other's."""
        side, healed = suspect.side, dict[int, Tensor]()
        line, following = self.operations[side][suspect.number].line, [suspect]
        while following and len(healed) < _MOST_BLOCKS:
            healed[following[0].number] = following[0].value
            pair = _Pair(self.rows, self.allowed, [healed, {}] if side == 0 else [{}, healed])
            if pair.agrees:
                return True
            following = [
                one
                for one in pair.suspects()
                if one.side == side
                and one.number not in healed
                and pair.operations[side][one.number].line == line
            ]
        return False

    def suspects(self) -> Iterator[Suspect]:
        """Operations that may be wrong: of what both calls use next, they give something else."""
        for numbers in self.partners:
            one, other = (self.operations[side][n] for side, n in enumerate(numbers))
            for *values, at, to in zip(
                one.given, other.given, one.sources, other.sources, strict=False
            ):
                yield from self._behind((values[0], values[1]), (at, to))
        yield from self._behind((self.outputs[0], self.outputs[1]), (self.last[0], self.last[1]))

    def _behind(
        self, values: tuple[Tensor, Tensor], sources: tuple[int | None, int | None]
    ) -> Iterator[Suspect]:
        """The operations that give a value of both calls, if it differs."""
        cut = self._part(*values)
        if cut is None or not _differ(cut, values[1]):
            return
        made = [(side, number) for side, number in enumerate(sources) if number is not None]
        alone = [one for one in made if one[1] not in self.known[one[0]]]
        named = self._only_origin(alone) if alone else self._wrong_itself(sources)
        for side, number in alone or made:
            value = cut if side else self._put(*values)
            if named and self.operations[side][number].output.shape == value.shape:
                yield Suspect(side, number, value, named)

    def _wrong_itself(self, sources: tuple[int | None, int | None]) -> Operation | None:
        """The operation that both calls make, if it is given the same in both."""
        if sources not in self.partners:
            return None
        one, other = (self.operations[side][number or 0] for side, number in enumerate(sources))
        agree = len(one.given) == len(other.given) and one.numbers == other.numbers
        return one if agree and all(map(self._agree, one.given, other.given)) else None

    def _only_origin(self, alone: list[tuple[int, int]]) -> Operation | None:
        """The operation on the only line of all that one call alone computes for some operations.

        What several lines make is the fault of any of them, and what comes of a state that an
        earlier call left may be that call's; then it is ``None``.

        Args:
            alone: side and number of each.
        """
        left, found = [*alone], dict[str, Operation]()
        while left:
            side, number = left.pop()
            operation = self.operations[side][number]
            if not operation.lays_out:
                found.setdefault(operation.where, operation)
            known = self.rows[side].call.known_tensors
            for tensor, source in zip(operation.given, operation.sources, strict=True):
                if source is not None:
                    left += [(side, source)] * (source not in self.known[side])
                elif not any(torch.equal(tensor, one) for one in known):
                    return None
        return next(iter(found.values())) if len(found) == 1 and "" not in found else None

    def _paired(self) -> Iterator[tuple[int, int]]:
        """The operations of the calls that the same line makes, in the order of the smaller one."""
        left: dict[str, list[int]] = defaultdict(list)
        for number, operation in enumerate(self.operations[0]):
            left[operation.line].append(number)
        for number, operation in enumerate(self.operations[1]):
            if operation.line and left[operation.line]:
                yield left[operation.line].pop(0), number

    def _agree(self, large: Tensor, small: Tensor) -> bool:
        part = self._part(large, small)
        return part is not None and not _differ(part, small)

    def _part(self, large: Tensor, small: Tensor) -> Tensor | None:
        """The part of a tensor that corresponds to one of the smaller call; ``None`` if none."""
        if large.dim() != small.dim() or large.is_floating_point() != small.is_floating_point():
            return None
        for axis, (size, wanted) in enumerate(zip(large.shape, small.shape, strict=True)):
            if size == wanted:
                continue
            places = self.places.get((size, wanted))
            if places is None:
                return None
            large = large.index_select(axis, torch.tensor(places, device=large.device))
        return large

    def _put(self, large: Tensor, small: Tensor) -> Tensor:
        """A copy of a tensor in which that part is another."""
        flat = self._part(torch.arange(large.numel()).view(large.shape).double(), small.double())
        assert flat is not None
        whole = large.clone().flatten()
        whole[flat.long().flatten()] = small.to(large.dtype).flatten()
        return whole.view(large.shape)


def _places(large: Row, small: Row) -> dict[tuple[int, int], list[int]]:
    """Which places of an axis the smaller call has, by the sizes of that axis in both.

    The outputs, and the places in them that are compared, say which items and tokens these are.
    """
    shapes = large.output.shape[:-1], small.output.shape[:-1]
    found = {}
    for size, wanted, place, other in zip(*shapes, large.place, small.place, strict=True):
        if size != wanted and 0 <= place - other <= size - wanted:
            found[size, wanted] = [*range(place - other, place - other + wanted)]
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


def _told(text: str, operation: Operation) -> Clue:
    file, number, _ = operation.where.split(":", 2)
    return Clue(text=f"{text} {operation.line}", file=file, line=int(number))


def _lost(row: Row, comparison: Comparison) -> Clue | None:
    """The first operation that gives NaN or infinity for finite numbers, if zeros heal it.

    Then the comparison holds; where nothing is expected, what it gives is finite.
    """
    whole = comparison.expected
    expected = None if whole is None or not whole.dim() else whole[comparison.at[:-1]]
    _, operations, _ = _run_again(row)
    sources = [n for n, operation in enumerate(operations) if operation.line and _loses(operation)]
    for number in sources[:_MOST_TRIES]:
        output = operations[number].output
        healed, *_ = _run_again(row, {number: output.nan_to_num(0.0, 0.0, 0.0)})
        if _holds(healed[row.place], expected, comparison.allowed or 0.0):
            what = "NaN" if bool(output.isnan().any()) else "infinity"
            return _told(f"{what} arises first in", operations[number])
    return None


def _loses(operation: Operation) -> bool:
    """Whether an operation gives NaN for what holds none, or infinity for finite numbers."""
    given = [tensor for tensor in operation.given if tensor.is_floating_point()]
    if not operation.output.is_floating_point() or not operation.given:
        return False
    if bool(operation.output.isnan().any()):
        return not any(bool(tensor.isnan().any()) for tensor in given)
    is_fill = operation.line.startswith(("masked_fill", "where", "fill", "copy", "full", "add"))
    finite = all(bool(tensor.isfinite().all()) for tensor in given)
    return finite and not is_fill and bool(operation.output.isinf().any())
