"""Small changes of what is written out: another number, another word."""

from __future__ import annotations

import ast
import itertools

from attnbench.checking.mending.edit_context import Context, Edits

_WORDS = ({"left", "right"}, {"ij", "xy"}, {"floor", "trunc"}, {"mean", "sum"})
"""Words of which one is mistaken for the other."""

_NAMED = (ast.JoinedStr, ast.Subscript, ast.Dict)
"""Where a word is a part of another, or a name."""

_LARGE = 100.0
"""What stands for an infinite number is at least this large."""


def of_constant(node: ast.Constant, context: Context) -> Edits:
    """Yield other numbers, names of numbers, and other words."""
    value = node.value
    if isinstance(value, bool):
        yield context.edit(1, node, str(not value))
        yield context.edit(2, node, "self.training")
    elif isinstance(value, int | float):
        yield from _numbers(node, value, context)
    elif isinstance(value, str) and not isinstance(context.parents.get(node), _NAMED):
        parent = context.parents.get(node)
        is_equation = isinstance(parent, ast.Call) and "einsum" in context.plain(parent.func)
        for text in _equations(value) if is_equation else _words(value):
            yield context.edit(3, node, repr(text))


def _numbers(node: ast.Constant, value: float, context: Context) -> Edits:
    if isinstance(value, int):
        for other in dict.fromkeys((value + 1, value - 1, -value)):
            if other != value:
                yield context.edit(2, node, str(other) if other >= 0 else f"({other})")
    else:
        inverse = f"{1 / value!r}" if value else "1.0"
        for text in (f"(-{value!r})", f"{2 * value!r}", f"{value / 2!r}", inverse, "1.0"):
            yield context.edit(4, node, text)
        if value >= _LARGE:
            yield context.edit(3, node, 'float("inf")')
    is_operand = isinstance(context.parents.get(node), ast.BinOp)
    for name, kind in context.names(node).items():
        if kind[0] == "number" and type(kind[1]) is type(value):
            yield context.edit(4, node, name)
        elif kind[0] == "tensor" and kind[2] == "floating" and value == 1 and is_operand:
            yield from (context.edit(5, node, f"torch.exp({sign}{name})") for sign in ("", "-"))


def _words(value: str) -> list[str]:
    """Words that may stand in place of one."""
    for words in _WORDS:
        if value in words:
            return sorted(words - {value})
    return []


def _equations(value: str) -> list[str]:
    """Equations of ``einsum`` with two letters of one operand, or of the result, exchanged."""
    found = []
    for i, j in itertools.combinations(range(len(value)), 2):
        part = value[i : j + 1]
        if part[0].isalpha() and part[-1].isalpha() and part.replace(" ", "").isalpha():
            found.append(value[:i] + value[j] + value[i + 1 : j] + value[i] + value[j + 1 :])
    return found
