"""Property checks and benchmarks for attention scoring functions.

Importing this package imports no torch: the names that need it are loaded when they are used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from attnbench.errors import (
    AttnbenchError,
    InvariantViolation,
    OptionError,
    RefusalError,
    ShapeError,
    SpecError,
    UnknownNameError,
    UsageError,
)
from attnbench.hookspecs import hookimpl
from attnbench.specs import (
    CacheSpec,
    Clue,
    Format,
    Invariant,
    KernelSpec,
    LayerSpec,
    MechanismSpec,
    ScoringSpec,
    Sizes,
    Style,
)

if TYPE_CHECKING:
    from attnbench.attention.attend import attend
    from attnbench.cases.case import Case
    from attnbench.checking.api import check, check_calls
    from attnbench.checking.check_report import CheckReport
    from attnbench.checking.outcomes import Outcome
    from attnbench.checking.parametrization import parametrize_with_checks
    from attnbench.subject.input_files import record
    from attnbench.subject.lookup import get, subjects
    from attnbench.subject.subject import Subject
    from attnbench.subject.tensors import Inputs

_LAZY = {
    "Case": "cases.case",
    "CheckReport": "checking.check_report",
    "Inputs": "subject.tensors",
    "Outcome": "checking.outcomes",
    "Subject": "subject.subject",
    "attend": "attention.attend",
    "check": "checking.api",
    "check_calls": "checking.api",
    "get": "subject.lookup",
    "parametrize_with_checks": "checking.parametrization",
    "record": "subject.input_files",
    "subjects": "subject.lookup",
}

_MODULES = ("adapters", "commands", "saved_inputs", "strategies", "styles", "testing", "timing")

__all__ = [
    "AttnbenchError",
    "CacheSpec",
    "Case",
    "CheckReport",
    "Clue",
    "Format",
    "Inputs",
    "Invariant",
    "InvariantViolation",
    "KernelSpec",
    "LayerSpec",
    "MechanismSpec",
    "OptionError",
    "Outcome",
    "RefusalError",
    "ScoringSpec",
    "ShapeError",
    "Sizes",
    "SpecError",
    "Style",
    "Subject",
    "UnknownNameError",
    "UsageError",
    "attend",
    "check",
    "check_calls",
    "compare",
    "get",
    "hookimpl",
    "parametrize_with_checks",
    "record",
    "subjects",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # 20 ms that importing attnbench need not take

        return version("attnbench")
    if name in _MODULES:
        return importlib.import_module(f"attnbench.{name}")
    if name in _LAZY:
        value = getattr(importlib.import_module(f"attnbench.{_LAZY[name]}"), name)
        globals()[name] = value  # found without this function from now on
        return value
    from attnbench.distributions import NAME_GROUP, advice, entry_points

    if not name.startswith("_") and name in (points := entry_points(NAME_GROUP)):
        globals()[name] = value = points[name].load()
        return value
    message = f"module 'attnbench' has no attribute {name!r}. {advice(name)}"
    raise AttributeError(message.strip(), name=name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
