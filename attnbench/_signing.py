"""What a spec's ``make`` is wrapped in: it checks sizes and options, and signs what it makes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from attnbench.errors import OptionError, ShapeError, nearest

ORIGIN = "attnbench_origin"
"""Attribute of a module that a spec made: the spec's name, and what made it."""

MADE_FOR = "attnbench_sizes"
"""Attribute of a module that a spec made: the sizes it was made for."""

_SIZES = {"scoring": ("query_size", "key_size"), "layer": ("size",)}


def signed_make(
    name: str, kind: str, make: Callable[..., Any], *, equal_sizes: bool = False
) -> Callable[..., Any]:
    """``make`` of a spec, which checks sizes and options, and whose modules carry the spec's name.

    The name is text, so that it survives ``deepcopy`` and ``pickle``; with what made the module
    beside it, a user's function of the same name is not taken for the registered one.
    """
    make = getattr(make, "__wrapped__", make) if hasattr(make, ORIGIN) else make
    where = getattr(make, "__qualname__", type(make).__qualname__)
    origin = f"{name}@{getattr(make, '__module__', '')}:{where}"

    @functools.wraps(make, updated=())
    def signed(*sizes: int, **options: Any) -> Any:
        _check_sizes(name, kind, sizes, equal_sizes=equal_sizes)
        check_options(name, make, options)
        module = make(*sizes, **options)
        if hasattr(module, "forward"):
            setattr(module, ORIGIN, origin)
            setattr(module, MADE_FOR, sizes)
        return module

    setattr(signed, ORIGIN, origin)
    return signed


def _check_sizes(name: str, kind: str, sizes: tuple[int, ...], *, equal_sizes: bool) -> None:
    names = _SIZES.get(kind, ("query_size", "key_size", "value_size"))
    if len(sizes) != len(names):
        count = f"{len(names)} sizes by position" if len(names) > 1 else "one size by position"
        raise ShapeError(f"{name} is made with {count}, {', '.join(names)}; got {sizes}.")
    if equal_sizes and sizes[0] != sizes[1]:
        raise ShapeError(
            f"{name} needs query_size == key_size, got {sizes[0]} and {sizes[1]}; "
            "bilinear and additive score sizes that differ."
        )


def option_names(make: Callable[..., Any]) -> list[str] | None:
    """Names of the options of a ``make``; ``None`` if it takes any."""
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return None
    kinds = inspect.Parameter
    if any(p.kind is kinds.VAR_KEYWORD for p in parameters):
        return None
    # the first ones are the sizes, whatever their author called them
    named = [p for p in parameters if p.kind in (kinds.KEYWORD_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    return [p.name for p in named if p.kind is kinds.KEYWORD_ONLY or p.default is not p.empty]


def check_options(name: str, make: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Hold options against those of a ``make``.

    Raises:
        OptionError: one is unknown.
    """
    known = option_names(make) if options else None
    for option in options:
        if known is not None and option not in known:
            raise OptionError(f"{name} has no option {option!r}. {nearest(option, known)}")
