"""Changes of two layouts of one function that belong together: there and back."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable

from attnbench.checking.mending.edit_context import Context, Edit, Edits

_RANK, _MOST = 4, 48
"""How far such a pair goes, and most pairs of a definition."""

_LAYOUT = ("view", "reshape", "transpose", "swapaxes", "permute", "unflatten")
"""Methods that give a tensor in another layout."""


def of_layouts(found: Iterable[Edit], context: Context) -> Edits:
    """Yield pairs of changes of layouts in different statements of a function."""
    nodes = {
        ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)): node
        for node in context.nodes
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in _LAYOUT
    }
    changes = [
        (edit, nodes[edit.start, edit.end]) for edit in found if (edit.start, edit.end) in nodes
    ]
    kept = [(edit, node) for edit, node in changes if _is_layout(edit, node, context)]
    ordered = sorted(kept, key=lambda one: one[0].start)
    pairs = (
        (one, other)
        for (one, first), (other, second) in itertools.combinations(ordered, 2)
        if context.statement(first) is not context.statement(second)
        and context.function(first) is context.function(second)
    )
    for one, other in itertools.islice(pairs, _MOST):
        yield context.joined(_RANK, one, other)


def _is_layout(edit: Edit, node: ast.Call, context: Context) -> bool:
    """Whether a change leaves a layout out, or exchanges two of its sizes."""
    assert isinstance(node.func, ast.Attribute)
    is_less = edit.text == context.text(node.func.value)
    return is_less or (node.func.attr in ("view", "reshape") and ").transpose(-" in edit.text)
