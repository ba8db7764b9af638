"""Small changes of what a layer computes with that make its output the expected one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.invariants.toolkit.layer_calls import LayerCase, listed
from attnbench.invariants.toolkit.origins import Correction, Key, differ
from attnbench.subject.layer import LayerSubject

_MOST = 1000
"""Most changes that are tried."""

_FEW, _SMALL = 4, 256
"""Different numbers that no other result has by chance, and the largest part of a fraction."""

_CLOSE, _INFINITE = 1e-7, 1e30
_NO_SHIFTS: Mapping[str, int] = MappingProxyType({})

_RATES: dict[str, Callable[[Tensor], Tensor]] = {
    "falls twice as fast, as over half as many features": lambda rates: rates**2,
    "falls half as fast, as over twice as many features": lambda rates: rates**0.5,
    "falls four times as fast, as over a fourth of the features": lambda rates: rates**4,
    "falls a fourth as fast, as over four times as many features": lambda rates: rates**0.25,
    "starts at its second number": lambda rates: rates * (rates[1] / rates[0]),
    "is in the opposite order": lambda rates: rates.flip(0),
    "is replaced by 1 / itself": lambda rates: 1 / rates,
}
_POSITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "is one higher": lambda places: places + 1,
    "is one lower": lambda places: places - 1,
    "is counted from the end": lambda places: places.flip(0),
    "is counted from 0": lambda places: places - places[0],
}


def _run(layer: LayerCase) -> Tensor:
    return layer.run(layer.hidden)


def repair(
    subject: LayerSubject,
    expected: Callable[[LayerCase], Tensor],
    call: Callable[[LayerCase], Tensor] = _run,
    what: str = "it is right",
    shifts: Mapping[str, int] = _NO_SHIFTS,
) -> tuple[str, str]:
    """Which outputs are wrong, if not all, and a change with which two calls are right, if known.

    Args:
        subject: a layer.
        expected: what the output should be, in float64.
        call: gives the output.
        what: the words in front of the change.
        shifts: other numbers from which positions may begin, in words; none is below 0.
    """
    cases = (Case((1,), n, n, 16, 16, 16, dtype="float64", seed=n) for n in (7, 9))
    layers = (LayerCase(subject, subject.legal(case)) for case in cases)
    return first_of((Tried(layer, expected, call, shifts) for layer in layers), what)


class _Repairable(Protocol):
    """A module, and the tokens, or keys, of a call."""

    module: nn.Module
    hidden: Tensor


_Called = TypeVar("_Called", bound=_Repairable)


def first_of(tries: Iterable[Tried[Any]], what: str) -> tuple[str, str]:
    """Which outputs are wrong, if not all, and a change with which each call is right, if known."""
    found, places = [], ""
    for tried in tries:
        places = tried.places()
        if not differ(tried.output, tried.expected):
            return "", ""  # it is not wrong here
        changes = itertools.islice(tried.changes(), _MOST)
        found.append([text for text, is_right in changes if is_right])
        if not found[-1]:
            return places, ""
    both = [text for text in found[0] if text in found[1]]
    return places, (f"\n  {what} {both[0]}" if both else "")


class Tried(Generic[_Called]):
    """A call with one thing changed each time.

    Args:
        layer: the module and its tokens.
        expected: gives its right output.
        call: gives its output.
        shifts: by how much positions may be shifted.
        functions: what else a result may be, of itself, in words.
    """

    def __init__(
        self,
        layer: _Called,
        expected: Callable[[_Called], Tensor],
        call: Callable[[_Called], Tensor],
        shifts: Mapping[str, int] = _NO_SHIFTS,
        functions: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType({}),
    ) -> None:
        self.layer, self.call, self.shifts, self.functions = layer, call, shifts, functions
        self.noted, beside = Correction(), Correction()
        with beside:
            self.expected = expected(layer)
        with self.noted:
            self.output = call(layer)
        self.beside = list(filter(None, map(_numbers, beside.results.values())))

    def places(self) -> str:
        """A sentence on the tokens whose outputs are wrong; empty if all are."""
        count = self.output.shape[1]
        wrong = [n for n in range(count) if differ(self.output[:, n], self.expected[:, n])]
        few = 0 < len(wrong) < count
        outputs = f"output{'s' * (len(wrong) > 1)} {listed(wrong)} {'are' if wrong[1:] else 'is'}"
        return f"\n  of {count} tokens, only {outputs} wrong" if few else ""

    def changes(self) -> Iterator[tuple[str, bool]]:
        """Yield each change in words, and whether the output is right with it."""
        for name, buffer in self.layer.module.named_buffers():
            for change, value in _series(buffer, self.shifts):
                with _in_place(buffer, value):
                    yield f"if {_own(name)} {change}", self.is_right()
        counts = Counter(key.line for key in self.noted.results)
        for key, result in self.noted.results.items():
            several = counts[key.line] > 1
            which = f"result {key.number + 1} of {counts[key.line]}" if several else "the result"
            for change, value in _series(result, self.shifts):
                yield f"if {which} of {key.line} {change}", self.is_right(key, value)
            for change, factor in self._factors(result):
                text = f"if {which} of {key.line} is {change}"
                yield text, self.is_right(key, result * factor)
            yield from self._otherwise(key, which)
        for name, parameter in self.layer.module.named_parameters():
            if parameter.dim() == 2 and parameter.shape[0] == parameter.shape[1] > 1:
                with _in_place(parameter, parameter.detach().mT.clone()):
                    yield f"if {_own(name)} is transposed", self.is_right()
        for name, part in self.layer.module.named_modules():
            weight, bias = getattr(part, "weight", None), getattr(part, "bias", None)
            if isinstance(weight, Tensor) and weight.dim() == 2:
                yield from self._orders(_own(name), weight, bias)

    def _otherwise(self, key: Key, which: str) -> Iterator[tuple[str, bool]]:
        """Yield what else a result may be: a function of itself, or of what it is made of."""
        if not self.functions or not self.noted.results[key].is_floating_point():
            return
        for change, function in self.functions.items():
            text = f"if {which} of {key.line} is {change}"
            yield text, self.is_right(key, function(self.noted.results[key]))
        if (given := self.noted.given.get(key)) is not None:
            yield f"without {key.line}", self.is_right(key, given)
            for change, function in self.functions.items():
                text = f"if {which} of {key.line} is instead what it is made of, {change}"
                yield text, self.is_right(key, function(given))

    def is_right(self, place: Key | None = None, value: Tensor | None = None) -> bool:
        """Whether the output is right, with another result of an operation."""
        corrected = Correction(lambda key, result: value if key == place else result)
        try:
            with corrected if place else nullcontext():
                return not differ(self.call(self.layer), self.expected)
        except Exception:  # no such position, say
            return False

    def _factors(self, result: Tensor) -> Iterator[tuple[str, float]]:
        """Yield factors: by which a result of the right way is another, or roots of sizes.

        The last are of what has a number for each key, as scores and biases have.
        """
        if (mine := _numbers(result)) is not None:
            ratios = (_ratio(mine, other) for other in self.beside)
            for factor in dict.fromkeys(round(f, 9) for f in ratios if f is not None):
                yield f"multiplied by {in_words(factor)}", factor
        length, size = self.layer.hidden.shape[1:]
        if result.dim() < 2 or result.shape[-1] != length or result.dtype != torch.float64:
            return
        heads = {t.shape[-1] for t in self.noted.results.values() if t.dim() == 4} - {length, 1}
        yield "multiplied by -1", -1.0
        roots = [2.0, 3.0, *(n for n in sorted(heads) if n < size), float(size)]
        for root in dict.fromkeys(power for n in roots for power in (n**0.5, float(n))):
            yield f"multiplied by {in_words(root)}", root
            yield f"divided by {in_words(root)}", 1 / root

    def _orders(self, name: str, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[str, bool]]:
        """Yield other orders of the features that a projection gives, or takes."""
        for axis, what in ((0, "gives"), (1, "takes")):
            beside = bias if axis == 0 and isinstance(bias, Tensor) else None
            for change, order in _reordered(weight.shape[axis]):
                text = f"with the features that {name} {what} {change}"
                with _in_place(weight, weight.index_select(axis, order)):
                    if beside is None:
                        yield text, self.is_right()
                        continue
                    with _in_place(beside, beside[order]):
                        yield text, self.is_right()


def _numbers(result: Tensor) -> tuple[Tensor, int] | None:
    """The finite numbers of a result, sorted, and how many others it has; ``None`` if few."""
    if result.dtype != torch.float64:
        return None
    finite = result[result.isfinite() & (result.abs() < _INFINITE)].sort().values
    return (finite, result.numel() - len(finite)) if len(torch.unique(finite)) >= _FEW else None


def _ratio(one: tuple[Tensor, int], two: tuple[Tensor, int]) -> float | None:
    """The factor by which all numbers of one result are those of another, unless it is 1."""
    if one[1] != two[1] or one[0].shape != two[0].shape:
        return None
    factor = float(two[0].norm() / one[0].norm())
    if abs(factor - 1) < _CLOSE:
        return None
    gap = (one[0] * factor - two[0]).abs().amax()
    return factor if gap <= _CLOSE * two[0].abs().amax() else None


def in_words(factor: float) -> str:
    """A factor; also as a fraction, or the root of one, where four digits are not all of it."""
    text = f"{factor:.4g}"
    for power, words in ((1, "{}"), (2, "the root of {}")):
        exact = Fraction(factor**power).limit_denominator(_SMALL)
        small = abs(float(exact) / factor**power - 1) < _CLOSE and exact.numerator <= _SMALL
        if small and float(text) != factor:
            return f"{text} ({words.format(exact)})"
    return text


def _own(name: str) -> str:
    return name.removeprefix("module.")


@contextmanager
def _in_place(tensor: Tensor, value: Tensor) -> Iterator[None]:
    """Let a tensor hold something else within."""
    before = tensor.detach().clone()
    with torch.no_grad():
        tensor.copy_(value)
        try:
            yield
        finally:
            tensor.copy_(before)


def _series(tensor: Tensor, shifts: Mapping[str, int]) -> Iterator[tuple[str, Tensor]]:
    """Yield other series where a tensor is one of rates or of positions."""
    if tensor.dim() != 1 or len(tensor) < 2:
        return
    values = tensor.double()
    if tensor.is_floating_point() and bool((values > 0).all()):
        falls = values[1:] / values[:-1]
        if float(falls[0]) < 1 and bool((falls - falls[0]).abs().amax() < 1e-5):
            for change, other in _RATES.items():
                yield change, other(tensor)
    if bool((values.diff() == 1).all()):
        for change, other in _POSITIONS.items():
            yield change, other(tensor)
        for change, shift in shifts.items():
            yield change, (tensor + shift).clamp(min=0)


def _reordered(count: int) -> Iterator[tuple[str, Tensor]]:
    """Yield orders of features in words, each as the number of the feature in every place."""
    numbers = torch.arange(count)
    for parts in (2, 3):
        blocks = numbers.reshape(parts, -1) if count % parts == 0 else numbers[:0]
        for order in itertools.permutations(range(parts)) if len(blocks) else ():
            if order != tuple(range(parts)):
                words = ", ".join(str(n + 1) for n in order)
                yield f"in blocks of the order {words}", blocks[list(order)].flatten()
    for groups, kinds in itertools.product(range(2, count), range(2, count)):
        if count % (groups * kinds):
            continue
        each, text = numbers.reshape(groups, kinds, -1), f"{groups} groups of {kinds} parts"
        turned = f"as {kinds} groups of {groups} parts instead of {text}"
        if groups == kinds:
            turned = f"with rows and columns of {groups} x {groups} parts exchanged"
        yield turned, each.transpose(0, 1).flatten()
        if kinds > 3:  # several queries for each key and value
            blocks = torch.cat([part.flatten() for part in torch.split(each, [kinds - 2, 1, 1], 1)])
            three = f"3 blocks, of {groups * (kinds - 2)}, {groups} and {groups} parts"
            yield f"as {three}, instead of {text}", blocks
            yield f"as {text} instead of {three}", blocks.argsort()
