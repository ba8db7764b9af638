"""Small changes of source text, by the kind of node that they change."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attnbench.checking.mending import (
    call_edits,
    constant_edits,
    elsewhere_edits,
    expression_edits,
    name_edits,
    statement_edits,
    torch_edits,
)
from attnbench.checking.mending.edit_context import Context, Edit, Edits, Kind

_CHANGES: tuple[tuple[type[ast.AST], Callable[[Any, Context], Edits]], ...] = (
    (ast.Name, name_edits.of_name),
    (ast.Name, name_edits.of_set_name),
    (ast.Name, name_edits.of_hidden_name),
    (ast.Attribute, name_edits.of_attribute),
    (ast.Constant, constant_edits.of_constant),
    (ast.BinOp, expression_edits.of_binary),
    (ast.UnaryOp, expression_edits.of_unary),
    (ast.Compare, expression_edits.of_compare),
    (ast.BoolOp, expression_edits.of_boolean),
    (ast.IfExp, expression_edits.of_choice),
    (ast.Tuple, expression_edits.of_sequence),
    (ast.List, expression_edits.of_sequence),
    (ast.ListComp, expression_edits.of_listed),
    (ast.DictComp, expression_edits.of_listed),
    (ast.If, statement_edits.of_branch),
    (ast.AugAssign, statement_edits.of_update),
    (ast.Call, call_edits.of_call),
    (ast.Call, torch_edits.of_choice),
    (ast.Slice, call_edits.of_slice),
    (ast.Subscript, call_edits.of_subscript),
    (ast.stmt, statement_edits.of_statement),
    (ast.expr, elsewhere_edits.of_expression),
)


def edits(
    tree: ast.AST,
    source: list[str],
    ran: Mapping[int, Mapping[str, Kind]],
    signatures: Mapping[str, ast.arguments],
    others: Iterable[ast.AST] = (),
) -> list[Edit]:
    """The changes of those lines of a definition that ran, the smallest changes first.

    Args:
        tree: the syntax tree of a top-level definition.
        source: the lines of the whole file.
        ran: by line that ran, the names that it could read, with the kinds of their values.
        signatures: arguments of the functions and classes of the file.
        others: the syntax trees of the other definitions.
    """
    found: dict[tuple[object, ...], tuple[Edit, ast.AST]] = {}
    context = Context(tree, source, ran, signatures, others)
    nodes = [node for node in ast.walk(tree) if hasattr(node, "lineno") and context.has_run(node)]
    for node in nodes:
        for of_type, changes in _CHANGES:
            for edit in changes(node, context) if isinstance(node, of_type) else ():
                if edit.text.count("\n") > edit.end[0] - edit.start[0]:
                    continue  # the lines behind it keep their numbers
                found.setdefault((edit.start, edit.end, edit.text), (edit, node))
    pairs = torch_edits.of_layouts(found.values(), context)
    return sorted([*(edit for edit, _ in found.values()), *pairs], key=lambda edit: edit.rank)
