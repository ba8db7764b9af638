"""Two small changes of one function that belong together: one alone leaves the other wrong."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable

from attnbench.checking.mending.edit_context import Context, Edit, Edits

_RANK, _MOST = 4, 48
"""How far such changes go, and most pairs of a definition."""

_LAYOUT = ("view", "reshape", "transpose", "swapaxes", "permute", "unflatten")
"""Methods that give a tensor in another layout, of which one goes there and another one back."""

_MOST_READS = 6
"""Most places at which one name takes that of another at once."""


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


def of_name(node: ast.Name, context: Context) -> Edits:
    """Yield another name here and at all later places of a function that read the same one."""
    kind = context.names(node).get(node.id)
    function = context.function(node)
    later = [
        other
        for (line, name), reads in context.reads.items()
        if name == node.id and line >= node.lineno
        for other in reads
        if context.has_run(other) and context.function(other) is function
    ]
    later = [one for one in later if (one.lineno, one.col_offset) >= (node.lineno, node.col_offset)]
    if kind is None or len({one.lineno for one in later}) < 2 or len(later) > _MOST_READS:
        return
    for name, other in context.names(node).items():
        is_alike = other[:1] == kind[:1] and other[2:] == kind[2:] and kind[0] == "tensor"
        if name == node.id or "." in name or not is_alike:
            continue
        if all(name in context.names(one) for one in later):
            yield from context.together(_RANK, [(one, name) for one in later])
