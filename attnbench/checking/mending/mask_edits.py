"""A tensor under a mask that the same line can read: hidden tokens left out, and scores hidden."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from attnbench.checking.mending.edit_context import Context, Edits

_RANK, _MOST = 5, 3
"""How far such a change goes, and most of the ways in which the axes of two tensors are paired."""

_HIDDEN = '{own}.masked_fill(~{mask}, float("-inf"))'


def of_name(node: ast.Name, context: Context) -> Edits:
    """Yield a tensor times a mask, and scores with hidden ones at negative infinity."""
    names = context.names(node)
    kind = names.get(node.id, ("",))
    parent = context.parents.get(node)
    is_attribute = isinstance(parent, ast.Attribute) and parent.attr == "shape"
    is_read = isinstance(node.ctx, ast.Load) and not is_attribute
    if kind[0] != "tensor" or kind[1] < 2 or kind[2] != "floating" or not is_read:
        return
    call = context.parents.get(parent) if isinstance(parent, ast.Attribute) else parent
    is_softened = isinstance(call, ast.Call) and context.plain(call.func).endswith("softmax")
    form = _HIDDEN if is_softened else "{own} * {mask}"
    for name, other in names.items():
        if other[0] == "tensor" and other[2] == "bool" and name != node.id:
            test = _guard(name, context)
            for index in itertools.islice(_indices(other[3], kind[3]), _MOST):
                text = form.format(own=node.id, mask=f"{name}{index}")
                text += f" if {test} else {node.id}" if test else ""
                yield context.edit(_RANK, node, f"({text})")


def _indices(shape: tuple[int, ...], whole: tuple[int, ...]) -> Iterator[str]:
    """Yield subscripts by which a mask has the axes of another tensor, in their order."""
    for places in itertools.combinations(range(len(whole)), len(shape)):
        pairs = [(size, whole[place]) for size, place in zip(shape, places, strict=True)]
        if all(one in (1, size) for one, size in pairs) and any(one == s > 1 for one, s in pairs):
            axes = [":" if i in places else "None" for i in range(len(whole))]
            while axes[-1:] == [":"]:
                axes.pop()
            is_needed = "None" in axes[axes.index(":") :] if ":" in axes else False
            yield f"[{', '.join(axes)}]" if is_needed else ""


def _guard(name: str, context: Context) -> str:
    """What has to hold for a name to have a value; empty if it always has one."""
    named = [one for one in context.nodes if isinstance(one, ast.Name) and one.id == name]
    stored = [one.lineno for one in named if isinstance(one.ctx, ast.Store)]
    for one in context.nodes:
        if isinstance(one, ast.If | ast.IfExp):
            test, lines = context.plain(one.test), range(one.lineno, (one.end_lineno or 0) + 1)
            if test == f"{name} is not None" or (stored and all(n in lines for n in stored)):
                return test
    return ""
