"""Changes of two layouts of one function that belong together: there and back."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable
from typing import Any

from attnbench.checking.mending.edit_context import Context, Edit, Edits

_RANK, _MOST = 4, 48
"""How far such a pair goes, and most pairs of a definition."""

_LAYOUT = ("view", "reshape", "transpose", "swapaxes", "permute", "unflatten")
"""Methods that give a tensor in another layout."""


def of_layouts(changes: Iterable[tuple[Edit, Any]], context: Context) -> Edits:
    """Yield pairs of changes in different statements: a layout left out, or sizes exchanged."""
    kept = [
        (node, edit.text)
        for edit, node in changes
        if isinstance(getattr(node, "func", None), ast.Attribute) and node.func.attr in _LAYOUT
        if edit.text == context.text(node.func.value) or ").transpose(-" in edit.text
    ]
    pairs = [
        (one, other)
        for one, other in itertools.combinations(kept, 2)
        if context.statement(one[0]) is not context.statement(other[0])
        if context.function(one[0]) is context.function(other[0])
    ]
    for pair in pairs[:_MOST]:
        yield from context.together(_RANK, pair)
