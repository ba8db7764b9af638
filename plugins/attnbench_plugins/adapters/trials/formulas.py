"""The registered scoring function that a callee computes, with the callee's own parameters.

A formula is taken only if it is the single one that gives the callee's outputs; then the callee is
held to it at all sizes, in Python floats.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import ScoringSpec
from attnbench.styles import Rows, pooled_rows, registry
from attnbench_plugins.adapters.trials.small_calls import Calls, repeatable

Place = tuple[str, bool]
"""A parameter of a callee, and whether it is transposed."""

_MOST = 96
_CLEAR = 1e-4


@dataclass(frozen=True)
class Formula:
    """A scoring function and where its parameters are in a callee.

    Args:
        spec: the scoring function.
        places: the callee's parameter for each of its own.
        keys: the parameter that maps keys first; ``None`` for none.
        biases: parameters that are added to the projected keys.
    """

    spec: ScoringSpec
    places: tuple[tuple[str, Place], ...]
    keys: Place | None = None
    biases: tuple[str, ...] = ()
    is_found = True

    def __str__(self) -> str:
        beside = f", with {' and '.join(self.biases)}" if self.biases else ""
        beside += ", of projected keys" if self.keys else ""
        return f"{self.spec.name}: {self.spec.formula}{beside}"

    def scoring(
        self, callee: Any, query: int, key: int
    ) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
        """The scoring function with the parameters of a callee, and what is done to keys first."""
        own, scored = _parameters(callee, query, key), query if self.keys else key
        made = _made(self.spec, query, scored)  # keys are mapped to queries first
        for name, place in self.places:
            part, _, last = name.rpartition(".")
            value = _taken(own, place)
            if made.get_parameter(name).dim() == 1:
                value = value.reshape(-1)
            if self.biases and name == _KEYS:  # of keys that end with one
                added = torch.stack([own[bias].reshape(-1) for bias in self.biases]).sum(0)
                value = torch.cat([value, added[:, None]], 1)
            setattr(made.get_submodule(part), last, nn.Parameter(value, requires_grad=False))

        def mapped(key: Tensor) -> Tensor:
            key = key if self.keys is None else key @ _taken(own, self.keys).mT.to(key)
            return torch.cat([key, key[..., :1] * 0 + 1], -1) if self.biases else key

        return made, mapped

    def rows(
        self, module: Any, query: Rows, key: Rows, value: Rows, allowed: list[list[bool]]
    ) -> Rows:
        """The output's rows, as ``reference`` of a mechanism's spec."""
        scoring, mapped = self.scoring(module.callee, len(query[0]), len(key[0]))
        reference: Any = self.spec.reference
        keys = mapped(torch.tensor(key, dtype=torch.float64)).tolist()
        return pooled_rows(partial(reference, scoring), query, keys, value, allowed)


_KEYS = "key_proj.weight"


@functools.lru_cache(maxsize=64)
def _made(spec: ScoringSpec, query: int, key: int) -> nn.Module:
    """A scoring function, whose parameters are replaced before each use."""
    return spec.make(query, key)


def _parameters(callee: Any, query: int, key: int) -> dict[str, Tensor]:
    """The parameters of a callee, and the two parts of those of a query and a key in one row."""
    named = callee.named_parameters() if isinstance(callee, nn.Module) else ()
    own = {name: parameter.detach() for name, parameter in named}
    for name, value in [*own.items()]:
        if value.dim() == 2 and value.shape[1] == query + key:
            for cut, side in {key: "Ek", query: "Eq"}.items():
                own |= {f"{name}[:{side}]": value[:, :cut], f"{name}[{side}:]": value[:, cut:]}
    return own


def _taken(own: dict[str, Tensor], place: Place) -> Tensor:
    return own[place[0]].mT if place[1] else own[place[0]]


def formula_of(calls: Calls, *, causal: bool = False) -> Formula | None:
    """The only formula that gives what a callee gives; ``None`` if there is none, or are more."""
    drawn = [calls.tensors()]
    drawn += [[2.5 * tensor.roll(shift, 0) for tensor in drawn[0]] for shift in (1, 2)]
    outputs = [calls(tensors) for tensors in drawn]
    own, sides = calls.result(drawn[0])[1], calls.callee.sides[:2]  # a call makes what is lazy
    found: list[Formula] = []
    for _, spec, _ in registry().specs():
        reference = spec.reference if isinstance(spec, ScoringSpec) else None
        code = getattr(reference, "__code__", None)
        if code is None or code.co_argcount != 3:  # nothing tells its arguments, or positions count
            continue
        with contextlib.suppress(Exception), repeatable():  # what a plugin's own code raises
            ways = itertools.islice(_ways(spec, _parameters(own, *sides), *sides), _MOST)
            found += itertools.islice(
                (w for w in ways if _gives(w, own, drawn, outputs, causal)), 1
            )
    return found[0] if len(found) == 1 else None


def _ways(spec: Any, own: dict[str, Tensor], query: int, key: int) -> Iterator[Formula]:
    """The ways in which the parameters of a callee may be those of a scoring function."""
    wanted = dict(spec.make(query, key).named_parameters())
    if not wanted:
        yield Formula(spec, ())
        squares = [name for name, value in own.items() if {*value.shape} == {query, key}]
        yield from (Formula(spec, (), (n, turned)) for n in squares for turned in (False, True))
    options = [[(name, place) for place in _sources(value, own)] for name, value in wanted.items()]
    for places in itertools.product(*options) if options else ():
        taken = {place[0] for _, place in places}
        if len(taken) < len(places):
            continue
        yield Formula(spec, places)
        rows = len(wanted[_KEYS]) if _KEYS in wanted else 0
        if biases := tuple(n for n, v in own.items() if n not in taken and v.numel() == rows):
            yield Formula(spec, places, biases=biases)


def _sources(parameter: Tensor, own: dict[str, Tensor]) -> list[Place]:
    """The parameters of that shape, as they are and transposed; of vectors, those of as many."""
    if parameter.dim() < 2:
        return [(name, False) for name, value in own.items() if value.numel() == parameter.numel()]
    shapes = {False: parameter.shape, True: parameter.mT.shape}
    pairs = itertools.product(shapes.items(), own.items())
    return [(name, turned) for (turned, shape), (name, v) in pairs if v.shape == shape]


def _gives(
    formula: Formula,
    callee: Any,
    drawn: Sequence[Sequence[Tensor]],
    outputs: Sequence[Tensor | None],
    causal: bool,
) -> bool:
    for (query, key, value), output in zip(drawn, outputs, strict=True):
        with torch.no_grad():
            scoring, mapped = formula.scoring(callee, query.shape[-1], key.shape[-1])
            scores: Tensor = scoring(query, mapped(key))
            if causal:  # the last query sees the last key
                first = 1 + key.shape[-2] - query.shape[-2]
                future = torch.ones_like(scores).triu(first).bool()
                scores = scores.masked_fill(future, -torch.inf)
            expected = scores.softmax(-1) @ value
        if output is None or not torch.allclose(output, expected.to(output), _CLEAR, _CLEAR):
            return False
    return True
