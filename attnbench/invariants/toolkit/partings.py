"""Where two computations of the same output part: the operations whose results one has alone.

Two results are the same if they hold the same numbers, in whatever order and shape.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from attnbench.attention.torch_internals import OperationMode
from attnbench.invariants.toolkit.origins import memory_of
from attnbench.subject.tracing import line_of

_NAMED = 2
"""Most lines that are named: more of them tell little."""

_MOST, _LARGEST = 1500, 50_000
"""Most operations of a call, and numbers of a result, that are compared."""

_FEW = 4
"""A result of fewer different numbers may be that of another operation by chance."""

_NEAR = 1e-6
"""The relative difference of equal numbers: constants may be of float32."""

_MAKES = re.compile(r"new_|\w+_like ")
"""Operations that take no more than sizes and the dtype from a tensor."""

_INFINITE = 1e100
_EXACTLY = "donot_use_mm_for_euclid_dist"


class _Result(NamedTuple):
    """A result of an operation.

    Args:
        line: ``name at file.py:line: source``; ``""`` if unknown.
        place: its number among the results of the operation.
        tensor: a copy in float64.
        values: its numbers, sorted.
        sources: numbers of the results that it is computed from.
        is_live: whether it depends on the input.
        is_chosen: whether indices or a mask that depend on the input have chosen what is in it.
        counts: whether it has real numbers, which are compared.
    """

    line: str
    place: int
    tensor: Tensor
    values: Tensor
    sources: frozenset[int]
    is_live: bool
    is_chosen: bool
    counts: bool


class _Flow(OperationMode):
    """Notes the results of operations, and what they are computed from.

    Args:
        start: the input.
    """

    def __init__(self, start: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.results: list[_Result] = []
        self._made, self._changed = dict[int, int](), dict[int, int]()
        self._held: list[Any] = []
        self._note(start, "", frozenset(), 0, is_live=True, is_chosen=False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        numbers = frozenset(number for one in given for number in self.numbers(one))
        result, line = func(*args, **(kwargs or {})), line_of(func)
        if _MAKES.match(line):  # of the sizes alone
            numbers = frozenset()
        live = [source for n in numbers if (source := self.results[n]).is_live]
        is_chosen = any(source.is_chosen or not source.counts for source in live)
        for place, one in enumerate(tree_leaves(result)):
            if isinstance(one, Tensor):
                is_written = any(one is other for other in given)
                reads = is_chosen and not is_written
                self._note(one, line, numbers, place, is_live=bool(live), is_chosen=reads)
                if is_written:
                    self._changed[memory_of(one)] = self._made[id(one)]
        return result

    def numbers(self, one: Tensor) -> Iterator[int]:
        """The result that a tensor is, and the last one that was written to its memory."""
        if id(one) in self._made:
            yield self._made[id(one)]
        if (place := memory_of(one)) in self._changed:
            yield self._changed[place]

    def _note(
        self, one: Tensor, line: str, sources: frozenset[int], place: int, **about: bool
    ) -> None:
        if len(self.results) > _MOST or one.numel() > _LARGEST:
            raise ValueError("too many operations, or numbers")
        value = (
            one.detach().double().nan_to_num(nan=2 * _INFINITE, posinf=_INFINITE, neginf=-_INFINITE)
        )
        self._made[id(one)] = len(self.results)
        values = value.flatten().sort().values
        counts = one.is_floating_point()
        found = _Result(line, place, value.clone(), values, sources, counts=counts, **about)
        self.results.append(found)
        self._held.append(one)

    def of(self, output: Tensor) -> set[int]:
        """The numbers of the results that lead to an output."""
        found, left = set[int](), [*self.numbers(output)]
        while left:
            if (number := left.pop()) not in found:
                found.add(number)
                left += self.results[number].sources
        return found


class Parting(NamedTuple):
    """Where a call parts from another one.

    Args:
        places: lines behind which it computes nothing that the other one computes, in their order,
            each with the results of both from which it does so.
        apart: other lines whose results only it has, and which lead to what both have.
    """

    places: list[tuple[str, list[Tensor]]]
    apart: frozenset[str]

    def lines(self, other: Parting | None = None) -> list[str]:
        """The lines; of another one's, those that start from what lines of that one start from."""
        starts = [start for _, given in other.places for start in given] if other else []
        facing = [line for line, given in self.places if any(_is_among(g, starts) for g in given)]
        return list(dict.fromkeys(facing or [line for line, _ in self.places]))


def parting(
    call: Callable[[Tensor], Tensor],
    other: Callable[[Tensor], Tensor],
    hidden: Tensor,
    excused: Collection[str] = (),
) -> Parting:
    """Compare what two ways from the same input to an output compute.

    Args:
        call, other: the two ways.
        hidden: the input, in float64.
        excused: lines that are known to be right, though only the first call has their results.
    """
    one, leading, output = _flow(call, hidden)
    two, _, _ = _flow(other, hidden)
    known = _known(one, two)
    if not _is_among(output, [result.values for result in two]):  # all of it may occur there
        known = [k and not _alike(r.values, output) for k, r in zip(known, one, strict=True)]
    tells = [len(torch.unique(result.values)) >= _FEW for result in one]
    leads = [k and tell for k, tell in zip(known, tells, strict=True)]
    for number in reversed(range(len(one))):
        for source in one[number].sources if leads[number] else ():
            leads[source] = True
    right = [k or lead or r.line in excused for k, lead, r in zip(known, leads, one, strict=True)]
    apart = {r.line for n, r in enumerate(one) if leads[n] and tells[n] and not known[n]}
    places = [
        (one[number].line, [one[n].values for n in one[number].sources if one[n].is_live])
        for number in sorted(leading)
        if one[number].line
        and not right[number]
        and all(right[source] for source in one[number].sources)
    ]
    return Parting(places, frozenset(apart))


def agreed(found: list[list[str]], name: str, other: str) -> str:
    """A sentence on the lines in which each of some calls parts; empty if they do not agree."""
    first, *more = found
    lines = [line for line in first if all(line in each for each in more)]
    both = " and in ".join(lines)
    return f"\n  {name} parts from {other} in {both}" if 0 < len(lines) <= _NAMED else ""


def _known(one: list[_Result], two: list[_Result]) -> list[bool]:
    """Of each result of a call, whether another call has its numbers.

    New numbers need only occur there; what arranges others anew has to be one of its results.
    """
    mine, theirs = _lines(one), _lines(two)
    others = [r.values for r in two if r.counts] + [_joined(rs) for rs in theirs.values()]
    pool = torch.unique(torch.cat([r.values for r in two if r.counts]))
    known: list[bool] = []
    for result in one:
        sources = [one[source] for source in result.sources]
        told = [source for source in result.sources if known[source]]
        together = mine.get((result.line, result.place))
        is_known = (
            not result.is_live
            or not result.values.numel()
            or (not result.counts and len(told) == len(sources))
            or any(_alike(result.values, one[source].values) for source in told)
            or (result.counts and _is_among(result.values, others))
            or (together and len(told) == len(sources) and _is_among(_joined(together), others))
            or (_computes(result, sources) and _occurs(result.values, pool))
            or (result.is_chosen and any(_has_rows([r], result) for r in two))
            or (result.is_chosen and any(_has_rows(rs, result) for rs in theirs.values()))
        )
        known.append(bool(is_known))
    return known


def _computes(result: _Result, sources: list[_Result]) -> bool:
    """Whether a result has numbers that none of its sources has."""
    given = [source.values for source in sources if source.counts]
    return result.counts and not (given and _occurs(result.values, torch.unique(torch.cat(given))))


def _occurs(values: Tensor, pool: Tensor) -> bool:
    """Whether all numbers but zero and infinite ones are among sorted others."""
    values = values[(values != 0) & (values.abs() < _INFINITE)]
    if not values.numel() or not pool.numel():
        return False
    after = torch.searchsorted(pool, values).clamp(max=len(pool) - 1)
    near = torch.minimum((pool[after] - values).abs(), (pool[after - 1] - values).abs())
    return bool((near <= _NEAR * values.abs().amax()).all())


def _flow(
    call: Callable[[Tensor], Tensor], hidden: Tensor
) -> tuple[list[_Result], set[int], Tensor]:
    """The results of a call, which of them lead to its output, and its numbers, sorted."""
    given = hidden.clone()
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), _Flow(given) as flow:
        output = call(given)
    return flow.results, flow.of(output), output.double().flatten().sort().values


def _lines(results: list[_Result]) -> dict[tuple[str, int], list[_Result]]:
    """The results that a loop computes at a line, by line and place."""
    lines: dict[tuple[str, int], list[_Result]] = {}
    for result in results:
        if result.line and result.counts:
            lines.setdefault((result.line, result.place), []).append(result)
    return {line: several for line, several in lines.items() if len(several) > 1}


def _joined(results: list[_Result]) -> Tensor:
    return torch.cat([result.values for result in results]).sort().values


def _is_among(values: Tensor, others: list[Tensor]) -> bool:
    """Whether a result has the numbers of one of others, each equally often."""
    return any(_alike(*_stretched(values, other)) for other in others if other.numel())


def _stretched(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Two results, one repeated if the other is so many times as large."""
    few, many = sorted((one, other), key=len)
    times, rest = divmod(len(many), len(few))
    return (few, many) if rest else (few.repeat_interleave(times), many)


def _alike(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    sizes = torch.where(other.abs() < _INFINITE, other.abs(), 0.0)
    return bool(((one - other).abs() <= _NEAR * sizes.amax().clamp(min=1e-30)).all())


def _has_rows(results: list[_Result], chosen: _Result) -> bool:
    """Whether each row of what was chosen is one of others, along any axis of theirs."""
    size = chosen.tensor.shape[-1] if chosen.tensor.dim() else 1
    axes = ((r.tensor, n) for r in results for n in range(r.tensor.dim()) if r.counts)
    rows = [t.movedim(n, -1).reshape(-1, size) for t, n in axes if t.shape[n] == size or size == 1]
    if not rows:
        return False
    near = torch.cdist(chosen.tensor.reshape(-1, size), torch.cat(rows), compute_mode=_EXACTLY)
    return bool((near.amin(1) <= _NEAR * chosen.tensor.abs().amax()).all())
