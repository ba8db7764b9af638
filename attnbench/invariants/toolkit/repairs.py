"""Small changes of what a layer computes with that make its output the expected one."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.invariants.toolkit.layer_calls import LayerCase, listed
from attnbench.invariants.toolkit.origins import Correction, Key, differ
from attnbench.invariants.toolkit.other_operations import OtherOperations, Replaced, given
from attnbench.invariants.toolkit.other_series import reordered, series
from attnbench.subject.layer import LayerSubject

_Changes = Iterator[tuple[str, Callable[[], bool]]]
"""Changes in words, each with what tells whether the output is right with it."""

_MOST = 1000
"""Most changes that are tried."""

_FEW, _SMALL = 4, 256
"""Different numbers that no other result has by chance, and the largest part of a fraction."""

_CLOSE, _INFINITE = 1e-7, 1e30
_NO_SHIFTS: Mapping[str, int] = MappingProxyType({})


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
    calls = []
    for tried in tries:
        if not differ(tried.output, tried.expected):
            return "", ""  # it is not wrong here
        calls.append(tried)
    first, *others = calls
    for text, is_right in itertools.islice(first.changes(), _MOST):
        if is_right() and all(each.holds(text, first.factors.get(text)) for each in others):
            return calls[-1].places(), f"\n  {what} {text}"
    return calls[-1].places(), ""


class Tried(Generic[_Called]):
    """A call with one thing changed each time.

    Args:
        layer: the module and its tokens.
        expected: gives its right output.
        call: gives its output.
        shifts: by how much positions may be shifted.
        functions: what else a result may be, of itself, in words.

    Attributes:
        factors: the results in words that were multiplied, and by what, for each such change.
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
        self.factors: dict[str, tuple[str, float]] = {}
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
        return f"\n  in a call on {count} tokens, only {outputs} wrong" if few else ""

    @functools.cached_property
    def tests(self) -> dict[str, Callable[[], bool]]:
        """The changes that are tried, and what tells whether the output is right with each."""
        return dict(itertools.islice(self.changes(), _MOST))

    def holds(self, text: str, factor: tuple[str, float] | None) -> bool:
        """Whether the output is right with a change of another call, such as a result's factor."""
        test = self.tests.get(text)
        if test is None and factor is not None:
            named = {which: key for key, which in _named(self.noted.results).items()}
            if (key := named.get(factor[0])) is not None:
                test = self._with(key, self.noted.results[key] * factor[1])
        return test is not None and test()

    def changes(self) -> _Changes:
        """Yield the changes that are tried."""
        for name, buffer in self.layer.module.named_buffers():
            for change, value in series(buffer, self.shifts):
                yield f"if {_own(name)} {change}", self._holding((buffer, value))
        for key, which in _named(self.noted.results).items():
            result = self.noted.results[key]
            for change, value in series(result, self.shifts):
                yield f"if {which} {change}", self._with(key, value)
        yield from self._other_operations()
        for key, which in _named(self.noted.results).items():
            result = self.noted.results[key]
            for change, factor in self._factors(result):
                text = f"if {which} is {change}"
                self.factors[text] = which, factor
                yield text, self._with(key, result * factor)
            yield from self._otherwise(key, which)
        for name, parameter in self.layer.module.named_parameters():
            if parameter.dim() == 2 and parameter.shape[0] == parameter.shape[1] > 1:
                turned = self._holding((parameter, parameter.detach().mT.clone()))
                yield f"if {_own(name)} is transposed", turned
        for name, part in self.layer.module.named_modules():
            weight, bias = getattr(part, "weight", None), getattr(part, "bias", None)
            if isinstance(weight, Tensor) and weight.dim() == 2:
                yield from self._orders(_own(name), weight, bias)

    def _otherwise(self, key: Key, which: str) -> _Changes:
        """Yield what else a result may be: a function of itself, or of what it is made of."""
        result, made_of = self.noted.results[key], self.noted.given.get(key)
        if not self.functions or not result.is_floating_point():
            return
        for change, function in self.functions.items():
            yield f"if {which} is {change}", self._with(key, function(result))
        if made_of is not None:
            yield f"without {key.line}", self._with(key, made_of)
            for change, function in self.functions.items():
                text = f"if {which} is instead what it is made of, {change}"
                yield text, self._with(key, function(made_of))

    def _with(self, place: Key, value: Tensor) -> Callable[[], bool]:
        """A test whether the output is right with another result of an operation."""
        number = self.noted.numbers[place]
        return functools.partial(self._is_right, lambda: Replaced({number: given(value)}))

    def _holding(self, *held: tuple[Tensor, Tensor]) -> Callable[[], bool]:
        """A test whether the output is right while some tensors hold something else."""
        return functools.partial(self._is_right, functools.partial(in_place, held))

    def _is_right(self, changed: Callable[[], AbstractContextManager[object]]) -> bool:
        try:
            with changed():
                return not differ(self.call(self.layer), self.expected)
        except Exception:  # no such position, say
            return False

    def _other_operations(self) -> _Changes:
        """Yield operations that are done a little otherwise."""
        with OtherOperations() as noted:
            self.call(self.layer)
        for key, which in _named(noted.ways).items():
            for way, other in noted.ways[key].items():
                changed = functools.partial(Replaced, {noted.numbers[key]: other})
                yield f"if {which} {way}", functools.partial(self._is_right, changed)

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

    def _orders(self, name: str, weight: Tensor, bias: Tensor | None) -> _Changes:
        """Yield other orders of the features that a projection gives, or takes."""
        for axis, what in ((0, "gives"), (1, "takes")):
            beside = bias if axis == 0 and isinstance(bias, Tensor) else None
            for change, order in reordered(weight.shape[axis]):
                text = f"with the features that {name} {what} {change}"
                held = [(weight, weight.index_select(axis, order))]
                held += [] if beside is None else [(beside, beside[order])]
                yield text, self._holding(*held)


def _named(keys: Collection[Key]) -> dict[Key, str]:
    """The results of operations in words, with their numbers where a line has several."""
    counts = Counter(key.line for key in keys)
    return {
        key: (f"result {key.number + 1} of {count}" if count > 1 else "the result")
        + f" of {key.line}"
        for key in keys
        if (count := counts[key.line])
    }


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
def in_place(held: Iterable[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Let tensors hold something else within."""
    before = [(tensor, tensor.detach().clone()) for tensor, _ in held]
    with torch.no_grad():
        try:
            for tensor, value in held:
                tensor.copy_(value)
            yield
        finally:
            for tensor, value in before:
                tensor.copy_(value)
