"""The arguments of a constructor, a config or a forward, with what each means."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from attnbench.calling.roles import role_of

NOTHING: Any = inspect.Parameter.empty
"""The default of an argument that has none, and the annotation of one that has none."""


@dataclass(frozen=True)
class Argument:
    """An argument of a callable.

    Args:
        name: its name.
        role: what it means, of the table that was asked; ``None`` where its name says nothing.
        default: its default; :data:`NOTHING` where it has none.
        annotation: its type, resolved where that is possible; :data:`NOTHING` where it has none.
    """

    name: str
    role: str | None
    default: Any = NOTHING
    annotation: Any = NOTHING

    @property
    def required(self) -> bool:
        """Whether a call has to give it."""
        return self.default is NOTHING


def arguments(callee: Callable[..., Any], table: str) -> list[Argument] | None:
    """The arguments of a callable in order, without ``*args``, ``**kwargs`` and ``self``.

    Args:
        callee: a class, a function or a module; of a module those of its ``forward``.
        table: the table of names: ``constructor`` or ``forward``.

    Returns:
        ``None`` where nothing tells them, as for some built-in functions.
    """
    called = callee
    if not inspect.isclass(callee) and not hasattr(callee, "__signature__"):
        called = getattr(callee, "forward", callee)
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return None
    types = annotations_of(called.__init__ if inspect.isclass(called) else called)
    found = [
        Argument(p.name, role_of(p.name, table), p.default, types.get(p.name, NOTHING))
        for p in parameters
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if inspect.isclass(called) and any(p.kind is p.VAR_KEYWORD for p in parameters):
        names = {argument.name for argument in found}
        found += [a for a in _of_bases(called, table) if a.name not in names]
    return found


def forward_of(target: Any) -> Any:
    """The function whose arguments a call takes: of a class or a module its ``forward``.

    Where that only hands ``*args`` on, it is that of the next base.
    """
    cls = target if inspect.isclass(target) else type(target)
    if not issubclass(cls, nn.Module):
        return target
    found = [vars(kind)["forward"] for kind in cls.__mro__ if "forward" in vars(kind)]
    return next((each for each in found if not _hands_on(each)), found[0])


def _hands_on(function: Any) -> bool:
    """Whether a method takes any arguments by position, and names none of them."""
    try:
        kinds = [each.kind for each in inspect.signature(function).parameters.values()][1:2]
    except (TypeError, ValueError):
        return False
    return kinds == [inspect.Parameter.VAR_POSITIONAL]


def _of_bases(cls: type, table: str) -> list[Argument]:
    """The arguments that the constructor of a class may hand on to that of its base."""
    own = next((k for k in cls.__mro__ if "__init__" in vars(k)), object)
    rest = cls.__mro__[cls.__mro__.index(own) + 1 :]
    base = next((k for k in rest if "__init__" in vars(k)), object)
    if base in (object, nn.Module):
        return []
    return arguments(base, table) or []


def annotations_of(called: Any) -> dict[str, Any]:
    """The types that a callable declares; text that names nothing is left out."""
    try:
        return typing.get_type_hints(called)
    except Exception:  # one name of a module that is missing would hide all others
        space = vars(sys.modules.get(getattr(called, "__module__", ""), typing))
        return {
            name: found
            for name, kind in getattr(called, "__annotations__", {}).items()
            if (found := space.get(kind) if isinstance(kind, str) else kind) is not None
        }


def plain_type(annotation: Any) -> Any:
    """The one type that an annotation allows beside ``None``; itself where it allows several."""
    options = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    is_union = type(None) in typing.get_args(annotation)
    return options[0] if is_union and len(options) == 1 else annotation
