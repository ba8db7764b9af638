"""How other libraries' attention is called: adapters, and those with one argument as styles."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import attnbench
from attnbench import Style

__all__ = ["attnbench_styles"]


def _late(module: str, name: str) -> Callable[..., Any]:
    """A function of a module here, which is imported when it is called."""

    def call(target: Any, **fields: Any) -> Any:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)(target, **fields)

    return call


def _takes_any(target: Any) -> str | None:
    """The adapter itself says what does not fit."""
    return None


@attnbench.hookimpl
def attnbench_styles() -> Iterable[Style]:
    """The styles ``flex``, ``interface`` and ``keras``."""
    misfit = _late("interface", "misfit")
    yield Style(name="flex", fits=_takes_any, adapt=_late("flex", "flex_of"))
    yield Style(name="interface", fits=misfit, adapt=_late("interface", "interface"))
    yield Style(name="keras", fits=_takes_any, adapt=_late("keras", "keras"))
