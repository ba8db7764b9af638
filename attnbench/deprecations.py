"""Deprecated names of public modules: they work for one minor release, with a warning.

A module sets ``__getattr__ = deprecated_names(...)``. From the release that the warning names, the
name raises ``AttributeError``, and a test fails until its entry is deleted.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

__all__ = ["TABLES", "deprecated_names"]

TABLES: dict[str, tuple[str, Mapping[str, str]]] = {}
"""For each module with deprecated names: the release in which they go, and where each is found."""


def deprecated_names(
    module: str, homes: Mapping[str, str], *, why: str, gone_in: str
) -> Callable[[str], Any]:
    """Make a module's ``__getattr__`` for its deprecated names.

    Args:
        module: name of the module.
        homes: the deprecated names, with the module in which each is found.
        why: reason, and what to do instead.
        gone_in: the minor release without them, such as ``"0.3"``.
    """
    TABLES[module] = (gone_in, homes)

    def __getattr__(name: str) -> Any:  # noqa: N807 -- it is a module's
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name)
        if is_gone(gone_in):
            raise AttributeError(f"{module}.{name} was removed in {gone_in}: {why}.", name=name)
        warnings.warn(
            f"{module}.{name} is deprecated and will be removed in {gone_in}: {why}.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(importlib.import_module(homes[name]), name)

    return __getattr__


def is_gone(gone_in: str, version: str | None = None) -> bool:
    """Whether a release, by default the installed one, is the named minor release or later."""
    numbers = (version or metadata.version("attnbench")).split(".")[:2]
    return tuple(map(int, numbers)) >= tuple(map(int, gone_in.split(".")))
