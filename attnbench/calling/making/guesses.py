"""What is tried for an argument of a constructor whose name says nothing."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from attnbench.calling.making.widths import Widths
from attnbench.calling.roles import METHODS

SIDES = ("window", "grid")
"""Roles of one number, or of one for rows and one for columns."""


def guesses(target: Any, role: str | None, kind: Any, sizes: Widths) -> tuple[Any, ...]:
    """What to try for a name that says nothing, by its annotation."""
    if role in SIDES:
        side = sizes.grid
        if kind is int:
            return (side,)
        return (*((None,) if role == "window" else ()), side, (side, side))
    if role == "method" or kind is str:
        return choices(target) or METHODS
    by_kind: dict[Any, tuple[Any, ...]] = {
        int: (sizes.width, 1),
        float: (0.0, 1.0),
        bool: (False, True),
        None: (None, False, sizes.width, 1),
    }
    return by_kind.get(kind, (sizes.width, None, 1) if role is None else (None, sizes.width))


def choices(target: Any, name: str = "") -> tuple[str, ...]:
    """The strings with which the code of a class compares something, or what has a name.

    Of a name, these are also the keys of what it is looked up in.
    """
    nodes = [*ast.walk(tree_of(target))]
    compared = [n for n in nodes if isinstance(n, ast.Compare) and name in (*named_in(n), "")]
    found = [n.value for c in compared for n in ast.walk(c) if isinstance(n, ast.Constant)]
    space = vars(sys.modules.get(target.__module__, SimpleNamespace()))
    for node in nodes:
        if isinstance(node, ast.Subscript) and name in named_in(node.slice):
            tables = map(space.get, named_in(node.value))
            found += [key for table in tables if isinstance(table, Mapping) for key in table]
    return tuple(dict.fromkeys(v for v in found if isinstance(v, str) and v.lower() not in _NOT))


_NOT = ("", "none", "no", "off")
"""What stands for doing nothing at all."""


def tree_of(target: Any) -> ast.AST:
    """The syntax tree of a class or a function; an empty one where nothing has its source."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(target)))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])


def named_in(node: ast.AST) -> list[str]:
    """The variables and attributes that an expression names."""
    parts = [*ast.walk(node)]
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    return names + [part.attr for part in parts if isinstance(part, ast.Attribute)]
