"""The guard that notices if the code under test changes the suite that checks it.

A file that is checked runs in the process that checks it. Code that replaces an invariant, or a
function that compares, would pass everything; what was found in such a process counts for nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from operator import is_not
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from attnbench.registry.catalog import registry
from attnbench.specs import Invariant

_PACKAGES = ("attnbench", "attnbench_plugins")
_FIELDS = ("name", "check", "cases", "applies", "law", "kinds")
_COMPARISONS = ("equal", "allclose", "isclose", "isfinite", "isnan", "all", "any", "sub", "item")
"""Functions of torch, and methods of tensors, by which outputs are compared."""


class SuiteGuard:
    """The parts of the suite before the code under test is imported."""

    def __init__(self) -> None:
        self._places = [*_suite()]
        self._codes = [
            (value, *_parts(value)) for *_, value in self._places if isinstance(value, FunctionType)
        ]

    def change(self) -> str | None:
        """The first part of the suite that was replaced since, in words; ``None`` if none was."""
        for owner, name, value in self._places:
            if _current_part(owner, name) is not value:
                return f"{_title(owner)}.{name} was replaced"
        for function, *parts in self._codes:
            if any(map(is_not, _parts(function), parts)):
                return f"the code of {function.__module__}.{function.__qualname__} was replaced"
        return None


def _suite() -> Iterator[tuple[Any, str, Any]]:
    """Each function, class and method of the suite, and the fields of each invariant."""
    for package, module in list(sys.modules.items()):
        if package.partition(".")[0] in _PACKAGES:
            yield from _module_parts(module)
    for invariant in registry().invariants():
        for field in _FIELDS:
            yield invariant, field, vars(invariant)[field]
    for owner in (torch, torch.Tensor):
        for name in _COMPARISONS:
            if hasattr(owner, name):
                yield owner, name, getattr(owner, name)


def _module_parts(module: ModuleType) -> Iterator[tuple[Any, str, Any]]:
    for name, value in list(vars(module).items()):
        if isinstance(value, FunctionType | BuiltinFunctionType | type):  # clocks are built in
            yield module, name, value
        if isinstance(value, type) and value.__module__ == module.__name__:
            for attribute, member in list(vars(value).items()):
                if isinstance(member, FunctionType | staticmethod | classmethod | property):
                    yield value, attribute, member


def _current_part(owner: Any, name: str) -> Any:
    is_ours = owner not in (torch, torch.Tensor)
    return vars(owner).get(name) if is_ours else getattr(owner, name, None)


def _parts(function: FunctionType) -> tuple[Any, ...]:
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _title(owner: Any) -> str:
    if isinstance(owner, Invariant):
        return f"the invariant {owner.name}"
    return str(getattr(owner, "__qualname__", None) or owner.__name__)
