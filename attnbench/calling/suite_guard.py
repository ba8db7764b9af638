"""The guard that notices if the code under test changes the suite that checks it.

A file that is checked runs in the process that checks it. Code that replaces an invariant, or a
function that compares, would pass everything; what was found in such a process counts for nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from attnbench.distributions import NAME_GROUP, PACKAGES, entry_points, is_built_in
from attnbench.registry.catalog import registry
from attnbench.specs import Invariant

_FIELDS = ("name", "check", "cases", "applies", "law", "kinds")
_COMPARISONS = ("equal", "allclose", "isclose", "isfinite", "isnan", "all", "any", "sub", "item")
"""Functions of torch, and methods of tensors, by which outputs are compared."""
_METHODS = (FunctionType, staticmethod, classmethod, property)


class SuiteGuard:
    """The parts of the suite before the code under test is imported.

    Args:
        owners: what holds them, each with its parts by name; by default the whole suite.
    """

    def __init__(self, owners: Iterable[tuple[Any, Mapping[str, Any]]] | None = None) -> None:
        for name, point in entry_points(NAME_GROUP).items() if owners is None else ():
            if name.startswith("adapters.") and is_built_in(point):
                point.load()  # which the first subject would do, whose file may replace parts
        self._owners = [*(_suite() if owners is None else owners)]
        values = (value for _, parts in self._owners for value in parts.values())
        self._codes = [
            (one, one.__code__, one.__defaults__, one.__kwdefaults__)
            for one in values
            if isinstance(one, FunctionType)
        ]

    def change(self) -> str | None:
        """The first part of the suite that was replaced since, in words; ``None`` if none was."""
        for owner, parts in self._owners:
            now = _current_parts(owner, parts)
            for name, value in parts.items():
                if now.get(name) is not value:
                    return f"{_title(owner)}.{name} was replaced"
        for function, code, defaults, keywords in self._codes:
            if (
                function.__code__ is not code
                or function.__defaults__ is not defaults
                or function.__kwdefaults__ is not keywords
            ):
                return f"the code of {function.__module__}.{function.__qualname__} was replaced"
        return None


def _suite() -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """The functions, classes and methods of the suite, and the fields of invariants, by owner."""
    for package, module in list(sys.modules.items()):
        if package.partition(".")[0] in PACKAGES:
            yield from _module_parts(module)
    for invariant in registry().invariants():
        yield invariant, {field: vars(invariant)[field] for field in _FIELDS}
    for owner in (torch, torch.Tensor):
        names = [name for name in _COMPARISONS if hasattr(owner, name)]
        yield owner, _current_parts(owner, names)


def _module_parts(module: ModuleType) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    own = dict(vars(module))
    kinds = FunctionType | BuiltinFunctionType | type  # clocks are built in
    yield module, {name: value for name, value in own.items() if isinstance(value, kinds)}
    for value in own.values():
        if isinstance(value, type) and value.__module__ == module.__name__:
            yield value, {n: one for n, one in vars(value).items() if isinstance(one, _METHODS)}


def _current_parts(owner: Any, names: Iterable[str]) -> Mapping[str, Any]:
    """What an owner holds now, at least of these names."""
    inherits = owner is torch or owner is torch.Tensor
    return {name: getattr(owner, name, None) for name in names} if inherits else vars(owner)


def _title(owner: Any) -> str:
    if isinstance(owner, Invariant):
        return f"the invariant {owner.name}"
    return str(getattr(owner, "__qualname__", None) or owner.__name__)
