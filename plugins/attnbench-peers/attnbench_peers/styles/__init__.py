"""How other libraries' attention is called: adapters, and those with one argument as styles."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import attnbench
from attnbench import Style


def _late(module: str, name: str) -> Callable[..., Any]:
    """A function of a module here, which is imported when it is called."""

    def call(target: Any, **fields: Any) -> Any:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)(target, **fields)

    return call


@attnbench.hookimpl
def attnbench_styles() -> Iterable[Style]:
    """The styles ``flex``, ``interface`` and ``keras``."""
    misfit = _late("interface", "misfit")
    # the adapters of flex and keras say themselves what does not fit
    yield Style(name="flex", fits=lambda target: None, adapt=_late("flex", "flex_of"))
    yield Style(name="interface", fits=misfit, adapt=_late("interface", "interface"))
    yield Style(name="keras", fits=lambda target: None, adapt=_late("keras", "keras"))
