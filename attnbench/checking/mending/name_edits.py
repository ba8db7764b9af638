"""Small changes of names: another one, another form of the value, or one more operand."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping

from attnbench.checking.mending.edit_context import REMOVAL, Context, Edits, Kind, is_count

_UNCHANGED = ("data", "mT", "T", "real")
"""Attributes that give another form of a tensor."""

_DTYPES = ("float16", "bfloat16", "float32", "float64")


def of_name(node: ast.Name, context: Context) -> Edits:
    """Yield other names of the same kind, other forms of the value, and one more operand."""
    names = context.names(node)
    kind = names.get(node.id)
    if kind is None or not isinstance(node.ctx, ast.Load):
        return
    parent = context.parents.get(node)
    is_whole = isinstance(parent, ast.Return | ast.Assign)
    rank = REMOVAL if _is_read_once(node, kind, context) else 1 if is_whole else 2
    twins = context.reads[node.lineno, node.id]
    for name, other in names.items():
        if name != node.id and _alike(kind, other) and name not in beside(node, context):
            yield context.edit(max(rank, 3) if "." in name else rank, node, name)
            if len(twins) > 1 and "." not in name:
                yield from context.together(3, [(twin, name) for twin in twins])
    if kind[0] == "tensor" and kind[2] == "bool":
        yield context.edit(1, node, f"(~{node.id})")
    elif kind[0] == "tensor":
        yield context.edit(4, node, f"{node.id}.clone()")
        yield context.edit(4, node, f"{node.id}.float()")
    is_part = isinstance(parent, ast.BinOp | ast.Call | ast.UnaryOp)
    if is_part and kind[0] != "module" and getattr(parent, "func", None) is not node:
        yield context.edit(3, node, f"(-{node.id})")
    for name in context.never_read() if kind[0] == "tensor" and is_whole else ():
        if name in names and names[name][:3] == kind[:3]:
            yield context.edit(3, node, f"torch.cat([{node.id}, {name}], -1)")
            yield context.edit(3, node, f"torch.cat([{name}, {node.id}], -1)")
    if kind[0] != "module" and getattr(parent, "func", None) is not node:
        for text in _with_operands(node.id, kind, names):
            yield context.edit(5, node, text)


def _is_read_once(node: ast.Name, kind: Kind, context: Context) -> bool:
    """Whether a tensor that a statement sets is read only here: another one leaves it out."""
    function = context.function(node)
    named = (one for (_, name), nodes in context.reads.items() if name == node.id for one in nodes)
    reads = [one for one in named if context.function(one) is function]
    return kind[0] == "tensor" and bool(context.assigned[node.id]) and len(reads) == 1


def beside(node: ast.expr, context: Context) -> set[str]:
    """The texts beside a value which it may not equal: nothing would be left of ``x - x``."""
    parent = context.parents.get(node)
    others: list[ast.expr] = []
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Sub | ast.Div | ast.FloorDiv):
        others = [parent.left, parent.right]
    elif isinstance(parent, ast.Compare):
        others = [parent.left, *parent.comparators]
    elif isinstance(parent, ast.Call):
        function = context.plain(parent.func).rpartition(".")[2]
        others = parent.args if function in ("max", "min", "maximum", "minimum") else []
    return {text(other) for other in others for text in (context.plain, context.text)}


def of_set_name(node: ast.Name, context: Context) -> Edits:
    """Yield what a name is set to with a difference the other way round, where it is used twice."""
    if not isinstance(context.parents.get(node), ast.Assign | ast.Subscript | ast.Tuple):
        return
    for text in context.assigned[node.id] if len(context.assigned[node.id]) == 1 else ():
        tree = ast.parse(text, mode="eval")
        for part in ast.walk(tree):
            if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Sub):
                part.left, part.right = part.right, part.left
                yield context.edit(4, node, ast.unparse(tree))
                part.left, part.right = part.right, part.left


def of_names(node: ast.BinOp, context: Context) -> Edits:
    """Yield the same part in place of another in several names at once: ``_x`` for ``_y``."""
    known, read = context.names(node), [n for n in ast.walk(node) if isinstance(n, ast.Name)]
    first = next((name.id for name in read if "_" in name.id and name.id in known), "")
    for other in known if first else ():
        pairs = zip(first.split("_"), other.split("_"), strict=False)
        differing = [pair for pair in pairs if pair[0] != pair[1]]
        if len(differing) != 1 or first.count("_") != other.count("_"):
            continue
        ((old, new),) = differing
        renamed = [
            (name, "_".join(new if part == old else part for part in name.id.split("_")))
            for name in read
        ]
        changed = [(name, text) for name, text in renamed if text != name.id and text in known]
        if len({text for _, text in changed}) > 1:
            yield from context.together(2, changed)


def _with_operands(own: str, kind: Kind, names: Mapping[str, Kind]) -> Iterator[str]:
    """Yield a value with another one added, or multiplied by one, where the form stays the same."""
    if kind[0] == "tensor" and kind[2] == "floating":
        yield from (f"{own}.{function}()" for function in ("sqrt", "square", "exp"))
    if is_count(kind):
        yield f"(2 * {own} - 1)"
    if is_count(kind) or (kind[0] == "tensor" and kind[2] == "whole"):
        yield from (f"({own} + 1)", f"({own} - 1)")
    if is_count(kind):
        counts = (name for name, other in names.items() if is_count(other) and name != own)
        yield from (f"max({own}, 0)", *(f"min({own}, {name})" for name in counts))
    elif kind[0] == "tensor" and kind[1] > 1:
        yield f"{own}.mT"
        yield from (f"{name}({own})" for name, other in names.items() if "Norm" in str(other[1]))
    for name, other in names.items():
        if name != own:
            yield from (f"({own} {sign} {name})" for sign in _signs(kind, other))
            if kind[0] == "tensor" and kind[2] == "floating" and is_count(other) and other[1] > 1:
                yield f"({own} * {name} ** -0.5)"


def _signs(kind: Kind, other: Kind) -> str:
    """The operators that may stand between a value and another one."""
    if other[0] == "number" and other[1] not in (0, 1):
        is_whole = is_count(kind) or (kind[0] == "tensor" and kind[2] == "whole")
        if is_count(other):
            return "+-" if is_whole else ""
        return "*/" if isinstance(other[1], float) else ""
    if kind[0] != "tensor" or other[0] != "tensor" or kind[2] != other[2]:
        return ""
    if not _broadcasts(other[3], kind[3]):
        return ""
    return {"floating": "*/+-", "whole": "+-", "bool": "&|"}.get(kind[2], "")


def _broadcasts(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts to another one, and is not a single number."""
    pairs = zip(reversed(shape), reversed(whole), strict=False)
    return 0 < len(shape) <= len(whole) and all(one in (1, size) for one, size in pairs)


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
    if own in names:
        for name, other in names.items():
            if name != own and _alike(names[own], other):
                yield context.edit(2, node, name)
        if names[own][0] != "module":
            for text in _with_operands(own, names[own], names):
                yield context.edit(5, node, text)
    if node.attr in _UNCHANGED:
        yield context.edit(1, node, context.text(node.value))
    if own == f"torch.{node.attr}" and node.attr in _DTYPES:
        yield context.edit(3, node, "torch.float64" if node.attr == "float32" else "torch.float32")
    if node.attr == "min" and "finfo" in own:
        yield context.edit(3, node, 'float("-inf")')


def of_hidden_name(node: ast.Name, context: Context) -> Edits:
    """Yield a tensor times a mask, and scores with hidden ones at negative infinity."""
    names = context.names(node)
    kind = names.get(node.id, ("",))
    parent = context.parents.get(node)
    is_read = isinstance(node.ctx, ast.Load) and getattr(parent, "attr", "") != "shape"
    if kind[0] != "tensor" or kind[1] < 2 or kind[2] != "floating" or not is_read:
        return
    call = context.parents.get(parent) if isinstance(parent, ast.Attribute) else parent
    is_softened = isinstance(call, ast.Call) and context.plain(call.func).endswith("softmax")
    form = '.masked_fill(~{}, float("-inf"))' if is_softened else " * {}"
    for name, other in names.items():
        if other[0] == "tensor" and other[2] == "bool" and name != node.id:
            test = _guard(name, context)
            for index in itertools.islice(_indices(other[3], kind[3]), 3):
                text = node.id + form.format(f"{name}{index}")
                text += f" if {test} else {node.id}" if test else ""
                yield context.edit(5, node, f"({text})")


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
