"""Small changes of calls and slices: another function, a part more or less, another order."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from attnbench.checking.mending import torch_edits
from attnbench.checking.mending.edit_context import REMOVAL, Context, Edits, is_count

_EXCHANGED = (
    {"repeat_interleave", "repeat"},
    {"tril", "triu"},
    {"maximum", "minimum", "max", "min"},
    {"amax", "amin", "mean"},
    {"sum", "mean"},
    {"floor", "ceil", "round"},
    {"sin", "cos"},
    {"log", "log2", "log1p"},
    {"exp", "exp2", "expm1"},
    {"argmax", "argmin"},
    {"zeros", "ones"},
    {"zeros_like", "ones_like"},
    {"any", "all"},
    {"softmax", "log_softmax"},
    {"var", "std"},
    {"no_grad", "enable_grad"},
)
"""Names of functions that are mistaken for one another."""

_UNCHANGED = (
    "detach",
    "clone",
    "contiguous",
    "float",
    "double",
    "half",
    "long",
    "int",
    "bool",
    "t",
)
"""Methods that give another form of a tensor, which leaving out removes nothing."""

_MOST_LEVELS = 3
"""Most levels of an expression over which a call is moved."""


def of_call(node: ast.Call, context: Context) -> Edits:
    """Yield what a function is given, other functions, and other arguments."""
    function = node.func
    if isinstance(function, ast.Attribute):
        if context.is_value(function.value):
            rank = 2 if function.attr in _UNCHANGED else REMOVAL
            yield context.edit(rank, node, context.text(function.value))
        for names in _EXCHANGED:
            for other in sorted(names - {function.attr}) if function.attr in names else ():
                yield context.edit(1, function, f"{context.text(function.value)}.{other}")
    given = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
    for argument in given:
        if not isinstance(argument, ast.Constant) and context.is_value(argument):
            is_like = context.plain(function).endswith("_like")  # which does not read its numbers
            yield context.edit(3 if is_like else REMOVAL, node, context.text(argument))
    for one, next_one in itertools.pairwise(given):
        yield context.exchanged(2, one, next_one)
    yield from _other_arguments(node, context)
    yield from _elsewhere(node, context)
    yield from torch_edits.of_call(node, context)


def _elsewhere(node: ast.Call, context: Context) -> Edits:
    """Yield a function that acts on a part of what it is given, or on what it is part of."""
    operand: ast.AST | None = node.args[0] if node.args else None
    if isinstance(node.func, ast.Attribute) and context.is_value(node.func.value):
        operand = node.func.value
    if operand is None or isinstance(operand, ast.Constant | ast.Starred):
        return
    for part in _parts(operand):
        if context.is_value(part):
            text = context.replaced(node, operand, context.text(part))
            yield context.edit(4, node, context.replaced(operand, part, text))
    whole: ast.AST = node
    for _ in range(_MOST_LEVELS):
        parent = context.parents.get(whole)
        if not isinstance(parent, ast.BinOp | ast.Call | ast.Attribute | ast.UnaryOp):
            return
        whole = parent
        if not isinstance(whole, ast.Attribute):
            inner = context.replaced(whole, node, context.text(operand))
            yield context.edit(4, whole, context.replaced(node, operand, f"({inner})"))


def _parts(node: ast.AST, level: int = 0) -> Iterator[ast.AST]:
    """Yield the values that a value is made of, down to some level."""
    within: list[ast.AST] = []
    if isinstance(node, ast.BinOp):
        within = [node.left, node.right]
    elif isinstance(node, ast.Call):
        within = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
    for part in within if level < _MOST_LEVELS else ():
        if not isinstance(part, ast.Constant | ast.Starred):
            yield part
            yield from _parts(part, level + 1)


def _other_arguments(node: ast.Call, context: Context) -> Edits:
    """Yield calls with an argument less, and with one more that has a name of its own."""
    parts = [context.plain(part) for part in (*node.args, *node.keywords)]
    function = context.plain(node.func)
    for i in range(len(parts)):
        if i >= len(node.args) or 0 < i == len(parts) - 1:
            yield context.edit(
                REMOVAL, node, f"{function}({', '.join(parts[:i] + parts[i + 1 :])})"
            )
    names = context.names(node)
    for name, default in _optional(node, context):
        called = {own: 1 for own in (name, f"self.{name}") if own in names}
        if isinstance(default, bool):
            called |= {str(not default): 1}
        elif isinstance(default, int):
            called |= {other: 4 for other, kind in names.items() if is_count(kind)}
        for value, rank in called.items():
            yield context.edit(rank, node, f"{function}({', '.join([*parts, f'{name}={value}'])})")


def _optional(node: ast.Call, context: Context) -> Iterator[tuple[str, object]]:
    """Yield the arguments that a call of the file's own functions leaves out, and their values."""
    function = context.plain(node.func).rpartition(".")[2]
    signature = context.signatures.get(function)
    if signature is None:
        return
    own = [argument.arg for argument in (*signature.posonlyargs, *signature.args)]
    taken = {keyword.arg for keyword in node.keywords}
    taken |= {*own[own[:1] == ["self"] :][: len(node.args)]}
    for name, default in _defaults(signature):
        if name not in taken:
            yield name, default.value if isinstance(default, ast.Constant) else None


def _defaults(signature: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    given = [*signature.posonlyargs, *signature.args]
    optional = given[len(given) - len(signature.defaults) :]
    for argument, default in zip(optional, signature.defaults, strict=True):
        yield argument.arg, default
    for argument, value in zip(signature.kwonlyargs, signature.kw_defaults, strict=True):
        if value is not None:
            yield argument.arg, value


def of_slice(node: ast.Slice, context: Context) -> Edits:
    """Yield with other bounds."""
    lower = "" if node.lower is None else context.plain(node.lower)
    upper = "" if node.upper is None else context.plain(node.upper)
    step = "" if node.step is None else f":{context.plain(node.step)}"
    if lower:
        yield context.edit(REMOVAL, node, f":{upper}{step}")
        yield context.edit(3, node, f"({lower}) + 1:{upper}{step}")
        yield context.edit(3, node, f"({lower}) - 1:{upper}{step}")
    if upper:
        yield context.edit(REMOVAL, node, f"{lower}:{step}")
        yield context.edit(3, node, f"{lower}:({upper}) + 1{step}")
        yield context.edit(3, node, f"{lower}:({upper}) - 1{step}")
    if bool(lower) != bool(upper):
        yield context.edit(2, node, f"{upper}:{lower}{step}")
        yield context.edit(2, node, f"-({upper}):{step}" if upper else f":-({lower}){step}")
    for name in [name for name, kind in context.names(node).items() if is_count(kind)]:
        if not upper:
            yield context.edit(4, node, f"{lower}:{name}{step}")
        if not lower:
            yield context.edit(4, node, f"{name}:{upper}{step}")


def of_subscript(node: ast.Subscript, context: Context) -> Edits:
    """Yield with one axis more, cut as another part of the same definition is."""
    index = context.plain(node.slice)
    if not isinstance(node.ctx, ast.Load) or ":" not in index or not context.is_value(node):
        return
    others = [
        part
        for part in context.cuts[node.lineno]
        if context.plain(part.slice) == index and context.statement(part) is context.statement(node)
    ]
    uppers = (part.upper for part in context.nodes if isinstance(part, ast.Slice))
    for text in dict.fromkeys(context.plain(upper) for upper in uppers if upper is not None):
        if not text.startswith("-"):
            pairs = [(part.slice, f"{index}, :{text}") for part in others]
            yield from context.together(4, pairs)
