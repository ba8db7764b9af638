"""The first operation by which two calls of a subject part, or in which a value is lost.

Both calls are made again, and their operations laid side by side. A line is named only if the
comparison holds once its operation gives what it gives in the other call, or, where an output is
not finite, once it gives zeros there.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnbench.checking.explain.alignment import ALIKE, Alignment, differ
from attnbench.checking.explain.recorded_operations import Operation, Operations
from attnbench.checking.explain.replay import Comparison, Row, SubjectCall, row_of
from attnbench.specs.extensions import Clue

_MOST_TRIES = 16
"""Most operations that are given another result."""

_MOST_BLOCKS = 4
"""Most runs of a line in a call that are given another result."""


def first_difference(comparison: Comparison) -> Clue | None:
    """The line by which what is compared goes wrong; ``None`` where the calls do not tell."""
    got, expected = comparison.got, comparison.expected
    with contextlib.suppress(Exception, SystemExit):  # what is run again may raise
        one = row_of(got, comparison) or _row_of_nan(comparison)
        if one is None:
            return None
        assert one.call.output is not None
        if not bool(one.call.output[one.place].isfinite().all()):
            return _lost(one, comparison)
        other = row_of(expected, comparison)
        if other is not None and other.call.number != one.call.number:
            return _parting(one, other, comparison.allowed or 0.0)
    return None


def _row_of_nan(comparison: Comparison) -> Row | None:
    """The first call whose output holds NaN, and the first row of it that does."""
    value = getattr(comparison.violation, "got", None)
    if value is None or value == value:
        return None
    for call in comparison.calls:
        if call.output is not None and call.output.dim() and bool(call.output.isnan().any()):
            return Row(call, tuple(call.output.isnan().any(-1).nonzero()[0].tolist()))
    return None


def _parting(got: Row, expected: Row, allowed: float) -> Clue | None:
    """The line by which two calls part: what it gives in one heals the other, wherever it runs."""
    outputs = [row.call.output for row in (got, expected)]
    if outputs[0] is None or outputs[1] is None or outputs[0].dim() != outputs[1].dim():
        return None
    rows = (got, expected) if _size(got) >= _size(expected) else (expected, got)
    pair, tried = _Pair(rows, allowed), set[tuple[int, str]]()
    for suspect in pair.suspects() if pair.is_comparable else ():
        operation = pair.operations[suspect.side][suspect.number]
        run = suspect.side, operation.line
        if not operation.line or run in tried or len(tried) == _MOST_TRIES:
            continue
        tried.add(run)
        if pair.is_healed(suspect):
            values = operation.output, suspect.value
            more = _contrast(*values) if suspect.named is operation else ""
            return _told("it goes wrong first in", suspect.named, more)
    return None


def _run_again(
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


def _size(row: Row) -> int:
    output = row.call.output
    assert output is not None
    return output.numel() + sum(tensor.numel() for tensor in row.call.tensors)


class Suspect(NamedTuple):
    """An operation that may be wrong.

    Args:
        side: 0 if the larger call makes it, 1 if the smaller one does.
        number: its number there.
        value: what it gives in the other call.
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
        found = [_run_again(row.call, own) for row, own in zip(rows, healed, strict=True)]
        self.outputs = [output for output, _ in found]
        self.operations = [operations for _, operations in found]
        self.aligned = Alignment(*rows)
        self.partners = list(self._paired())
        self.known = [{pair[side] for pair in self.partners} for side in (0, 1)]

    @property
    def is_comparable(self) -> bool:
        """Whether both calls gave again what they gave, and of one first argument."""
        calls = [row.call for row in self.rows]
        again = all(
            one is not None and call.output is not None and not differ(one, call.output)
            for one, call in zip(self.outputs, calls, strict=True)
        )
        firsts = zip(calls[0].tensors[:1], calls[1].tensors[:1], strict=False)
        return again and all(self._agree(*first) for first in firsts)

    @property
    def agrees(self) -> bool:
        """Whether what is compared agrees as the property asks, or as rounding allows."""
        one, two = (
            output[row.place].double()
            for output, row in zip(self.outputs, self.rows, strict=True)
            if output is not None
        )
        return _holds(one, two, self.allowed)

    def is_healed(self, suspect: Suspect) -> bool:
        """Whether the calls agree if an operation, wherever its line runs, gives the other's."""
        side, number, value, _ = suspect
        line, healed = self.operations[side][number].line, dict[int, Tensor]()
        for _ in range(_MOST_BLOCKS):
            healed[number] = value
            pair = _Pair(self.rows, self.allowed, [healed, {}] if side == 0 else [{}, healed])
            if pair.agrees:
                return True
            further = (
                one
                for one in pair.suspects()
                if one.side == side
                and one.number not in healed
                and pair.operations[side][one.number].line == line
            )
            following = next(further, None)
            if following is None:
                break
            _, number, value, _ = following
        return False

    def _paired(self) -> Iterator[tuple[int, int]]:
        """The operations of the calls that the same line makes, in the order of the smaller one."""
        left: dict[str, list[int]] = defaultdict(list)
        for number, operation in enumerate(self.operations[0]):
            left[operation.line].append(number)
        for number, operation in enumerate(self.operations[1]):
            if operation.line and left[operation.line]:
                yield left[operation.line].pop(0), number

    def suspects(self) -> Iterator[Suspect]:
        """Operations that may be wrong.

        That is one that gives something else for the same; or one that only one of the calls makes,
        and that gives the next one of both something else.
        """
        for place, number in self.partners:
            one, other = self.operations[0][place], self.operations[1][number]
            cut = self.aligned.part(one.output, other.output)
            if len(one.given) != len(other.given):
                continue
            if cut is not None and not differ(cut, other.output):
                continue
            wrong = [
                k for k in range(len(one.given)) if not self._agree(one.given[k], other.given[k])
            ]
            if not wrong and cut is not None and one.numbers == other.numbers:
                yield Suspect(1, number, cut, other)
                yield Suspect(0, place, self.aligned.put(one.output, other.output), one)
            for k in wrong:
                yield from self._behind(one, other, k)

    def only_origin(self, alone: Iterable[tuple[int, int]]) -> Operation | None:
        """The operation on the only line of all that one call alone computes for some operations.

        What several lines make is the fault of any of them, and what comes of a state that an
        earlier call left may be that call's; then it is ``None``.

        Args:
            alone: side and number of each.
        """
        left, found = [*alone], dict[str, Operation]()
        while left:
            side, number = left.pop()
            operation, known = self.operations[side][number], self.rows[side].call.known_tensors
            if not operation.lays_out:
                found.setdefault(operation.where, operation)
            for tensor, source in zip(operation.given, operation.sources, strict=True):
                if source is not None:
                    left += [(side, source)] * (source not in self.known[side])
                elif not any(torch.equal(tensor, one) for one in known):
                    return None
        return next(iter(found.values())) if len(found) == 1 and "" not in found else None

    def _agree(self, large: Tensor, small: Tensor) -> bool:
        part = self.aligned.part(large, small)
        return part is not None and not differ(part, small, ALIKE)

    def _behind(self, one: Operation, other: Operation, k: int) -> Iterator[Suspect]:
        """What only one call did to an argument that differs, if the other shows what it should."""
        large, small = one.given[k], other.given[k]
        cut = self.aligned.part(large, small)
        if cut is None:
            return
        values = self.aligned.put(large, small), cut
        sources = enumerate((one.sources[k], other.sources[k]))
        alone = [(s, n) for s, n in sources if n is not None and n not in self.known[s]]
        named = self.only_origin(alone)
        for side, number in alone:
            if named and self.operations[side][number].output.shape == values[side].shape:
                yield Suspect(side, number, values[side], named)


def _holds(row: Tensor, expected: Tensor | None, allowed: float) -> bool:
    """Whether a row is what is expected, as the property or rounding allows, or else finite."""
    if expected is None:
        return bool(row.isfinite().all())
    gap = (row.double() - expected.double()).abs()
    return bool((gap <= allowed).all()) or not differ(row, expected)


def _contrast(own: Tensor, other: Tensor) -> str:
    """The first value of a result that is another one in the other call."""
    place = tuple((own != other).nonzero()[0].tolist())
    one, two = (_shown(each[place].item()) for each in (own, other))
    return f": {one} where the other call has {two}"


def _shown(value: float | bool) -> str:
    return str(value) if isinstance(value, bool | int) else f"{value:.4g}"


def _told(text: str, operation: Operation, more: str = "") -> Clue:
    file, number, _ = operation.where.split(":", 2)
    return Clue(text=f"{text} {operation.line}{more}", file=file, line=int(number))


def _lost(row: Row, comparison: Comparison) -> Clue | None:
    """The first operation that gives NaN or infinity for finite numbers, if zeros heal it.

    Then the comparison holds; where nothing is expected, what it gives is finite.
    """
    whole = comparison.expected
    expected = None if whole is None or not whole.dim() else whole[comparison.at[:-1]]
    output, operations = _run_again(row.call)
    if not _is_same(output, row.call):
        return None
    sources = [
        (number, operation)
        for number, operation in enumerate(operations)
        if operation.line and _loses(operation)
    ]
    for number, operation in sources[:_MOST_TRIES]:
        healed, _ = _run_again(row.call, {number: operation.output.nan_to_num(0.0, 0.0, 0.0)})
        if healed is not None and _holds(healed[row.place], expected, comparison.allowed or 0.0):
            what = "NaN" if bool(operation.output.isnan().any()) else "infinity"
            return _told(f"{what} arises first in", operation)
    return None


def _loses(operation: Operation) -> bool:
    """Whether an operation gives NaN for what holds none, or infinity for finite numbers."""
    if not operation.output.is_floating_point() or not operation.given:
        return False
    if bool(operation.output.isnan().any()):
        return not any(bool(t.isnan().any()) for t in operation.given if t.is_floating_point())
    is_fill = operation.line.startswith(("masked_fill", "where", "fill", "copy", "full", "add"))
    finite = all(bool(t.isfinite().all()) for t in operation.given if t.is_floating_point())
    return finite and not is_fill and bool(operation.output.isinf().any())


def _is_same(output: Tensor | None, call: SubjectCall) -> bool:
    """Whether a call that was made again gave what it gave before."""
    return output is not None and call.output is not None and not differ(output, call.output)
