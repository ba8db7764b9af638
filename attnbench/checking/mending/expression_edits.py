"""Small changes of expressions: another operator, a part less, another order."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from attnbench.checking.mending import name_edits
from attnbench.checking.mending.edit_context import REMOVAL, Context, Edits, gap, is_count

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


def of_binary(node: ast.BinOp, context: Context) -> Edits:
    """Yield with another operator, one operand alone, and the operands exchanged."""
    for other in _OPERATORS.get(type(node.op), ()):
        yield context.between(2, node.left, node.right, other)
    yield from name_edits.of_names(node, context)
    left, right = context.text(node.left), context.text(node.right)
    yield context.edit(REMOVAL, node, left)
    yield context.edit(REMOVAL, node, right)
    if type(node.op) in _ORDERED:
        yield context.edit(3, node, f"({right} {_ORDERED[type(node.op)]} {left})")
    yield from _other_brackets(node, context)
    if isinstance(node.op, ast.Add):
        yield from _other_order(node.left, right, node, context)
    if isinstance(node.op, ast.Div):
        yield context.edit(4, node.right, f"{right}.clamp_min(1e-12)")  # a sum that may be 0
    if isinstance(node.op, ast.FloorDiv):
        yield context.edit(3, node, f"(-(-{left} // {right}))")  # rounded up
    if isinstance(node.op, ast.Mod):
        yield context.edit(3, node, f"(({left} - 1) % {right} + 1)")  # from 1 on


def _other_brackets(node: ast.BinOp, context: Context) -> Edits:
    """Yield ``a + (b * c)`` for ``(a + b) * c``, and the like."""
    for inner, other in ((node.left, node.right), (node.right, node.left)):
        if isinstance(inner, ast.BinOp) and type(inner.op) is not type(node.op):
            left, right, rest = map(context.text, (inner.left, inner.right, other))
            own = context.plain(gap(node.left, node.right)).strip(" ()\n")
            between = context.plain(gap(inner.left, inner.right)).strip(" ()\n")
            text = f"{left} {between} ({right} {own} {rest})"
            if inner is node.right:
                text = f"({rest} {own} {left}) {between} {right}"
            yield context.edit(3, node, f"({text})")


def _other_order(product: ast.expr, rest: str, node: ast.BinOp, context: Context) -> Edits:
    """Yield ``b * m + a`` for ``a * n + b``: the places of a grid along its other axis."""
    if not isinstance(product, ast.BinOp) or not isinstance(product.op, ast.Mult):
        return
    counts = [name for name, kind in context.names(node).items() if is_count(kind)]
    for one, other in ((product.left, product.right), (product.right, product.left)):
        if context.plain(other) in counts:
            for count in counts:
                yield context.edit(4, node, f"({rest} * {count} + {context.text(one)})")
                if (text := context.text(one)).endswith("[:, None]"):
                    inner = f"{rest}[:, None] * {count} + {text.removesuffix('[:, None]')}"
                    yield context.edit(4, node, f"({inner})")


def of_unary(node: ast.UnaryOp, context: Context) -> Edits:
    """Yield the operand alone."""
    yield context.edit(2, node, context.text(node.operand))


def of_compare(node: ast.Compare, context: Context) -> Edits:
    """Yield with another operator."""
    if len(node.ops) == 1:
        for other in _OPERATORS.get(type(node.ops[0]), ()):
            yield context.between(1, node.left, node.comparators[0], other)
        if type(node.ops[0]) in (ast.Lt, ast.LtE, ast.Gt, ast.GtE):
            yield context.edit(3, node.left, f"({context.plain(node.left)}).abs()")
            for text in _bounded(node, context):
                yield context.edit(4, node, text)


def _bounded(node: ast.Compare, context: Context) -> Iterator[str]:
    """Yield a comparison of indices with the bound of the other side beside it."""
    value, own = context.text(node.left), context.plain(node)
    other = node.comparators[0]
    if isinstance(node.ops[0], ast.Lt | ast.LtE):
        yield f"(({own}) & ({value} >= 0))"
    elif isinstance(other, ast.Constant) and other.value == 0:
        counts = (name for name, kind in context.names(node).items() if is_count(kind))
        yield from (f"(({own}) & ({value} < {name}))" for name in counts)


def of_boolean(node: ast.BoolOp, context: Context) -> Edits:
    """Yield with the other operator, and one operand alone."""
    words = " or " if isinstance(node.op, ast.And) else " and "
    yield context.edit(2, node, f"({words.join(map(context.text, node.values))})")
    for value in node.values:
        yield context.edit(REMOVAL, node, context.text(value))
        yield from of_test(value, context)
    if isinstance(node.op, ast.Or) and len(node.values) == 2:
        one, other = map(context.text, node.values)
        yield context.edit(2, node, f"({one} if {one} is not None else {other})")


def of_test(node: ast.expr, context: Context) -> Edits:
    """Yield whether there is a value, where 0 counts as none."""
    if isinstance(node, ast.Name | ast.Attribute):
        yield context.edit(2, node, f"({context.plain(node)} is not None)")


def of_choice(node: ast.IfExp, context: Context) -> Edits:
    """Yield one of the two alone, and the choice the other way round."""
    yield from of_test(node.test, context)
    yield context.edit(3, node.test, f"not {context.text(node.test)}")
    yield context.edit(REMOVAL, node, context.text(node.body))
    yield context.edit(REMOVAL, node, context.text(node.orelse))


def of_sequence(node: ast.Tuple | ast.List, context: Context) -> Edits:
    """Yield with two neighbours exchanged, and one of two alone, as axes of a reduction."""
    for one, other in itertools.pairwise(node.elts):
        yield context.exchanged(2, one, other)
        for alone in (one, other) if len(node.elts) == 2 and isinstance(node.ctx, ast.Load) else ():
            yield context.edit(4, node, f"({context.plain(alone)},)")


def of_listed(node: ast.ListComp | ast.DictComp, context: Context) -> Edits:
    """Yield copies of what is listed, which may be listed twice or elsewhere."""
    value = node.value if isinstance(node, ast.DictComp) else node.elt
    if isinstance(value, ast.Name | ast.Attribute | ast.Subscript):
        yield context.edit(3, value, f"copy.deepcopy({context.plain(value)})")
    if isinstance(node, ast.DictComp) and isinstance(value, ast.Subscript):
        for keys in dict.fromkeys(_keys(context)):
            whole, test = context.plain(value.value), f"{context.plain(node.key)} in {keys}"
            yield context.edit(5, value, f"{context.plain(value)} if {test} else {whole}")


def _keys(context: Context) -> Iterator[tuple[str, ...]]:
    """Yield the words under which a statement of the file keeps several things at once."""
    for node in context.parents:
        for target in node.targets if isinstance(node, ast.Assign) else ():
            parts = [part.slice for part in ast.walk(target) if isinstance(part, ast.Subscript)]
            words = [part.value for part in parts if isinstance(part, ast.Constant)]
            if words and all(isinstance(word, str) for word in words):
                yield tuple(map(str, words))
