"""A tensor under a mask that the same line can read: hidden tokens left out, and scores hidden."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from attnbench.checking.mending.edit_context import Context, Edits

_RANK, _MOST = 5, 3
"""How far such a change goes, and most of the ways in which the axes of two tensors are paired."""

_SOFTMAX = ("softmax", "log_softmax", "logsumexp")

_HIDDEN = '{own}.masked_fill(~{mask}, float("-inf"))'


def of_name(node: ast.Name, context: Context) -> Edits:
    """Yield a tensor times a mask, and scores with hidden ones at negative infinity."""
    names = context.names(node)
    kind = names.get(node.id, ("",))
    if (
        kind[0] != "tensor"
        or kind[1] < 2
        or kind[2] != "floating"
        or not _is_operand(node, context)
    ):
        return
    form = _HIDDEN if _is_softened(node, context) else "{own} * {mask}"
    for name, other in names.items():
        if other[0] == "tensor" and other[2] == "bool" and name != node.id:
            test = _guard(name, node, context)
            for index in itertools.islice(_indices(other[3], kind[3]), _MOST):
                text = form.format(own=node.id, mask=f"{name}{index}")
                text += f" if {test} else {node.id}" if test else ""
                yield context.edit(_RANK, node, f"({text})")


def _is_operand(node: ast.Name, context: Context) -> bool:
    parent = context.parents.get(node)
    is_given = isinstance(parent, ast.Call) and parent.func is not node
    is_owner = isinstance(parent, ast.Attribute) and isinstance(context.parents[parent], ast.Call)
    return isinstance(node.ctx, ast.Load) and (
        is_given or is_owner or isinstance(parent, ast.BinOp | ast.Assign | ast.Tuple)
    )


def _is_softened(node: ast.Name, context: Context) -> bool:
    """Whether a softmax is taken of a value, as a function or a method."""
    parent = context.parents.get(node)
    call = context.parents.get(parent) if isinstance(parent, ast.Attribute) else parent
    return isinstance(call, ast.Call) and context.plain(call.func).rpartition(".")[2] in _SOFTMAX


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


def _guard(name: str, node: ast.AST, context: Context) -> str:
    """What has to hold for a name to have a value; empty if it always has one."""
    for one in context.nodes:
        if isinstance(one, ast.arguments):
            given = [*one.posonlyargs, *one.args][::-1]
            optional = zip(given, one.defaults[::-1], strict=False)
            for argument, default in (
                *optional,
                *zip(one.kwonlyargs, one.kw_defaults, strict=True),
            ):
                is_none = isinstance(default, ast.Constant) and default.value is None
                if argument.arg == name and is_none:
                    return f"{name} is not None"
    set_in = [
        context.parents.get(one)
        for one in context.nodes
        if isinstance(one, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == name for t in one.targets)
    ]
    tests = [context.plain(one.test) for one in set_in if isinstance(one, ast.If)]
    return tests[0] if tests and len(tests) == len(set_in) else ""
