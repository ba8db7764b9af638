"""Small changes of statements and branches: one less, another order, another update."""

from __future__ import annotations

import ast

from attnbench.checking.mending import expression_edits
from attnbench.checking.mending.edit_context import STATEMENT, Context, Edits, gap, spanned

_MOST_EXCHANGED = 4
"""Most lines of statements that are exchanged."""

_MOST_PASSED = 16
"""Most lines up to the end of a block to which a statement is moved."""

_OPPOSITE = ((ast.Add, "-"), (ast.Sub, "+"), (ast.Mult, "/"), (ast.Div, "*"))


def of_statement(node: ast.stmt, context: Context) -> Edits:
    """Yield without a statement, and with it behind the one, the two or all that follow."""
    if not isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.If | ast.AnnAssign):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    yield context.edit(STATEMENT, node, "pass")
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield from _out_of_place(node.value, context)
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = context.plain(node.targets[0])
        is_part = isinstance(node.targets[0], ast.Attribute | ast.Subscript)
        if is_part or target in context.names(node):
            in_loop = isinstance(context.parents.get(node), ast.For | ast.While)
            text = f"{target} = {target} + {context.text(node.value)}"
            yield context.edit(2 if in_loop else 3, node, text)  # a sum over its turns
    behind = context.behind(node)
    nearest = [one for one in behind[:2] if one.end_lineno - node.lineno < _MOST_EXCHANGED]
    is_far = len(behind) > 2 and behind[-1].end_lineno - node.lineno < _MOST_PASSED
    for last in [*nearest, *(behind[-1:] if is_far else [])]:
        if _is_read_behind(last, node, context):
            is_line = last is behind[0] and last.end_lineno == node.lineno + 1
            rank = 2 if is_line else 3 if last in nearest else 4
            yield context.exchanged(rank, node, spanned(behind[0], last))
    if len(nearest) > 1 and _is_read_behind(nearest[1], behind[0], context):
        yield context.exchanged(3, spanned(node, behind[0]), behind[1])


def _is_read_behind(last: ast.stmt, node: ast.stmt, context: Context) -> bool:
    """Whether what a statement sets may be read behind another one; else it would do nothing."""
    does_more = any(isinstance(part, ast.Expr | ast.Return | ast.Raise) for part in ast.walk(node))
    if does_more or isinstance(context.parents.get(node), ast.For | ast.While):
        return True
    stored = [part for part in ast.walk(node) if isinstance(getattr(part, "ctx", 0), ast.Store)]
    names = {part.id for part in stored if isinstance(part, ast.Name)}
    is_kept = any(isinstance(part, ast.Attribute | ast.Subscript) for part in stored)
    lines = {line for line, name in context.reads if name in names}
    return is_kept or max(lines, default=0) > (last.end_lineno or 0)


def _out_of_place(node: ast.Call, context: Context) -> Edits:
    """Yield a new tensor under the name of one that a call changes: its owner may need it."""
    function = node.func
    if isinstance(function, ast.Attribute) and function.attr.endswith("_"):
        text, target = context.plain(node), context.plain(function.value)
        if isinstance(function.value, ast.Name) and target in context.names(node):
            new = text.replace(f".{function.attr}(", f".{function.attr[:-1]}(", 1)
            yield context.edit(2, node, f"{target} = {new}")


def of_branch(node: ast.If, context: Context) -> Edits:
    """Yield the branch always, never, and the other way round."""
    yield from expression_edits.of_test(node.test, context)
    yield context.edit(3, node.test, f"not {context.text(node.test)}")
    for text in ("True", "False"):
        yield context.edit(STATEMENT, node.test, text)


def of_update(node: ast.AugAssign, context: Context) -> Edits:
    """Yield an assignment in place of an update, another tensor, and the opposite operator."""
    target, value = context.plain(node.target), context.text(node.value)
    yield context.edit(2, node, f"{target} = {value}")
    between = context.plain(gap(node.target, node.value)).strip(" (")
    yield context.edit(2, node, f"{target} = {target} {between[:-1]} {value}")
    for one, other in _OPPOSITE:
        if isinstance(node.op, one):
            yield context.edit(2, node, f"{target} {other}= {value}")
