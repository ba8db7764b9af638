"""Small changes of expressions: another name, number or operator."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from attnbench.checking.mending.edit_context import REMOVAL, Context, Edits, Kind, is_count

_OPERATORS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Add: ("-",),
    ast.Sub: ("+",),
    ast.Mult: ("/",),
    ast.Div: ("*",),
    ast.FloorDiv: ("%", "/"),
    ast.Mod: ("//",),
    ast.BitAnd: ("|",),
    ast.BitOr: ("&",),
    ast.Lt: ("<=", ">"),
    ast.LtE: ("<", ">="),
    ast.Gt: (">=", "<"),
    ast.GtE: (">", "<="),
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
}
"""The operators for which one is mistaken."""

_ORDERED: dict[type[ast.AST], str] = {
    ast.Sub: "-",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
}
"""Operators whose operands do not commute."""

_UNCHANGED = ("data", "mT", "T", "real")
"""Attributes that give another form of a tensor."""


def of_name(node: ast.Name, context: Context) -> Edits:
    """Yield other names of the same kind, and other forms of the value."""
    names = context.names(node)
    kind = names.get(node.id)
    if kind is None or not isinstance(node.ctx, ast.Load):
        return
    parent = context.parents.get(node)
    rank = 1 if isinstance(parent, ast.Return | ast.Assign) else 2
    twins = [
        other
        for other in context.parents
        if isinstance(other, ast.Name)
        and other.id == node.id
        and other.lineno == node.lineno
        and isinstance(other.ctx, ast.Load)
    ]
    for name, other in names.items():
        if name != node.id and "." not in name and _alike(kind, other):
            yield context.edit(rank, node, name)
            if len(twins) > 1:
                yield context.everywhere(3, twins, name)
    if kind[0] == "tensor" and kind[2] == "bool":
        yield context.edit(1, node, f"(~{node.id})")
    elif kind[0] == "tensor":
        yield context.edit(4, node, f"{node.id}.clone()")
        yield context.edit(4, node, f"{node.id}.float()")
    is_part = isinstance(parent, ast.BinOp | ast.Call | ast.UnaryOp)
    if is_part and kind[0] != "module" and getattr(parent, "func", None) is not node:
        yield context.edit(3, node, f"(-{node.id})")
        yield from _combined(node, context, names, kind)


def _combined(node: ast.Name, context: Context, names: Mapping[str, Kind], kind: Kind) -> Edits:
    """Yield a value with a number added, or multiplied by one."""
    for name, other in names.items():
        if name == node.id or other[0] != "number" or other[1] in (0, 1):
            continue
        if is_count(other) and is_count(kind):
            yield context.edit(5, node, f"({node.id} + {name})")
            yield context.edit(5, node, f"({node.id} - {name})")
        elif isinstance(other[1], float):
            yield context.edit(5, node, f"({node.id} * {name})")
            yield context.edit(5, node, f"({node.id} / {name})")


def _alike(one: Kind, other: Kind) -> bool:
    """Whether a value may take the place of another, and is not the same."""
    if one[0] != other[0] or one[0] == "module" or (one == other and one[0] != "tensor"):
        return False
    if one[0] == "tensor":
        return bool(one[1:3] == other[1:3])  # the number of axes, and the sort
    return isinstance(one[1], bool) == isinstance(other[1], bool)


def of_attribute(node: ast.Attribute, context: Context) -> Edits:
    """Yield other attributes of the same kind, and the value without what changes its form."""
    names, own = context.names(node), context.plain(node)
    if not isinstance(node.ctx, ast.Load):
        return
    for name, other in names.items() if own in names else ():
        if name != own and _alike(names[own], other):
            yield context.edit(2, node, name)
    if node.attr in _UNCHANGED:
        yield context.edit(1, node, context.text(node.value))


def of_constant(node: ast.Constant, context: Context) -> Edits:
    """Yield other numbers."""
    value = node.value
    if isinstance(value, bool):
        yield context.edit(1, node, str(not value))
    elif isinstance(value, int):
        for other in dict.fromkeys((value + 1, value - 1, -value)):
            if other != value:
                yield context.edit(2, node, str(other) if other >= 0 else f"({other})")
    elif isinstance(value, float):
        for text in (f"(-{value!r})", f"{2 * value!r}", f"{value / 2!r}", "1.0"):
            yield context.edit(4, node, text)


def of_binary(node: ast.BinOp, context: Context) -> Edits:
    """Yield with another operator, one operand alone, and the operands exchanged."""
    for other in _OPERATORS.get(type(node.op), ()):
        yield context.between(2, node.left, node.right, other)
    left, right = context.text(node.left), context.text(node.right)
    yield context.edit(REMOVAL, node, left)
    yield context.edit(REMOVAL, node, right)
    if type(node.op) in _ORDERED:
        yield context.edit(3, node, f"({right} {_ORDERED[type(node.op)]} {left})")


def of_unary(node: ast.UnaryOp, context: Context) -> Edits:
    """Yield the operand alone."""
    yield context.edit(2, node, context.text(node.operand))


def of_compare(node: ast.Compare, context: Context) -> Edits:
    """Yield with another operator."""
    if len(node.ops) == 1:
        for other in _OPERATORS.get(type(node.ops[0]), ()):
            yield context.between(1, node.left, node.comparators[0], other)


def of_boolean(node: ast.BoolOp, context: Context) -> Edits:
    """Yield with the other operator, and one operand alone."""
    words = " or " if isinstance(node.op, ast.And) else " and "
    yield context.edit(2, node, f"({words.join(map(context.text, node.values))})")
    for value in node.values:
        yield context.edit(2, node, context.text(value))


def of_choice(node: ast.IfExp, context: Context) -> Edits:
    """Yield one of the two alone, and the choice the other way round."""
    yield context.edit(1, node.test, f"not {context.text(node.test)}")
    yield context.edit(REMOVAL, node, context.text(node.body))
    yield context.edit(REMOVAL, node, context.text(node.orelse))
