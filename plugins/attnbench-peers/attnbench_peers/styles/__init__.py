"""How other libraries' attention is called: adapters, and those with one argument as styles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attnbench
from attnbench import Style

__all__ = ["attnbench_styles"]


def _flex(target: Any, **fields: Any) -> Any:
    from attnbench_peers.styles.flex import flex_of

    return flex_of(target, **fields)


def _keras(target: Any, **fields: Any) -> Any:
    from attnbench_peers.styles.keras import keras

    return keras(target, **fields)


def _interface(target: Any, **fields: Any) -> Any:
    from attnbench_peers.styles.interface import interface

    return interface(target, **fields)


def _misfit(target: Any) -> str | None:
    from attnbench_peers.styles.interface import misfit

    return misfit(target)


def _takes_any(target: Any) -> str | None:
    """The adapter itself says what does not fit."""
    return None


@attnbench.hookimpl
def attnbench_styles() -> Iterable[Style]:
    """The styles ``flex``, ``interface`` and ``keras``."""
    yield Style(name="flex", fits=_takes_any, adapt=_flex)
    yield Style(name="interface", fits=_misfit, adapt=_interface)
    yield Style(name="keras", fits=_takes_any, adapt=_keras)
