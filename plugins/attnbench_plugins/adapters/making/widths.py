"""What arguments of a constructor get: sizes by what their names mean, and guesses for the rest."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from attnbench.styles import METHODS


@dataclass(frozen=True)
class Widths:
    """The sizes for which a module is made.

    Args:
        width: E, features of a hidden state.
        heads: number of heads.
        query, key, value: Eq, Ek and Ev, where they may differ; by default E.
        grid: rows and columns of an image or a window.
        dropout: the share of weights that training drops.
    """

    width: int = 16
    heads: int = 2
    query: int = 0
    key: int = 0
    value: int = 0
    grid: int = 3
    dropout: float = 0.0

    def of(self, role: str | None) -> tuple[Any, str] | None:
        """The value of a role, and the Python expression of ``size`` that gives it."""
        if role is None:
            return None
        if role in ("query", "key", "value") and getattr(self, role):
            return getattr(self, role), str(getattr(self, role))
        if role == "dropout":
            return self.dropout, repr(self.dropout)
        if role in _FIXED:
            return _FIXED[role], repr(_FIXED[role])
        if role not in VARIED:
            return None
        text = VARIED[role].replace("heads", str(self.heads))
        return eval(text, {"size": self.width, "nn": nn}), text  # noqa: S307  of the table


_FIXED: Mapping[str, Any] = {
    "length": 64,
    "kernel": 3,
    "stride": 1,
    "vocabulary": 32,
    "bias": False,
    "flag": False,
    "epsilon": 1e-5,
    "base": 10000.0,
    "scale": None,
    "layer": 0,
    "dtype": torch.float32,
    "device": "cpu",
    "implementation": "eager",
    "activation": "gelu",
}
VARIED: Mapping[str, str] = {
    **dict.fromkeys(("width", "query", "key", "value", "inner"), "size"),
    **dict.fromkeys(("heads", "kv_heads"), "heads"),
    "head_dim": "size // heads",
    "root": "(size // heads) ** 0.5",
    "feedforward": "2 * size",
    "batch": "8",
    "layers": "1",
    "norm": "nn.LayerNorm",
}
"""Roles whose default is replaced, so that a module can be made small, and at other sizes; or which
are given where the class refuses the default ``None``."""
LONGEST = 1024
"""Most tokens for which a module keeps room, in masks and caches that are copied with it."""

SIDES = ("window", "grid")
"""Roles of one number, or of one for rows and one for columns."""


def guesses(target: Any, role: str | None, kind: Any, sizes: Widths) -> tuple[Any, ...]:
    """What to try for a name that says nothing, by its annotation."""
    if role in SIDES:
        side = sizes.grid
        if kind is int:
            return (side,)
        return (*((None,) if role == "window" else ()), side, (side,) * 2, (side,) * 3)
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
