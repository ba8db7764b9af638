"""Expressions of the same file in place of one that is made alike, as on a layer's other path."""

from __future__ import annotations

import ast
import itertools

from attnbench.checking.mending.edit_context import Context, Edits, Head
from attnbench.checking.mending.name_edits import beside

_RANK, _MOST = 5, 20
"""How far such a change goes, and most of them in place of one expression."""


def of_expression(node: ast.expr, context: Context) -> Edits:
    """Yield expressions with the same operator, function or value as one, wherever they ran."""
    if isinstance(node, ast.Name):
        yield from _with_what_follows(node, context)
    head = context.head(node)
    if head is None or not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
        return
    own, names = context.text(node), context.names(node)
    known = {text for name in _names(node, context) for text in context.assigned[name]}
    fitting = (
        text
        for text, reads in _others(head, context)
        if text not in own and own not in text and reads <= names.keys()
        if text not in beside(node, context) | known
    )
    for text in itertools.islice(fitting, _MOST):
        yield context.edit(_RANK, node, text)


def _with_what_follows(node: ast.Name, context: Context) -> Edits:
    """Yield the sums of the same function that begin with a name: one place may lack the rest."""
    own, known = context.statement(node), context.names(node)
    for other in context.sums if isinstance(context.parents[node], ast.BinOp | ast.Compare) else ():
        first: ast.expr = other
        while isinstance(first, ast.BinOp):
            first = first.left
        if context.plain(first) != node.id or context.statement(other) is own:
            continue
        names = {part.id for part in ast.walk(other) if isinstance(part, ast.Name)}
        if names <= known.keys() and context.function(other) is context.function(node):
            yield context.edit(3, node, f"({context.plain(other)})")


def _others(head: Head, context: Context) -> dict[tuple[str, frozenset[str]], None]:
    """The expressions with a head, each with the names of values that it reads."""
    return dict.fromkeys(
        (context.text(node), frozenset(_names(node, context))) for node in context.alike[head]
    )


def _names(node: ast.expr, context: Context) -> set[str]:
    read = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return read & context.names(node).keys()
