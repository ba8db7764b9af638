"""Small changes of statements, branches, calls and slices: a part more or less, another order."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

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
)
"""Names of functions that are mistaken for one another."""


_MOST_EXCHANGED = 4
"""Most lines of two statements that are exchanged."""


def of_statement(node: ast.stmt, context: Context) -> Edits:
    """Yield without a statement, and with it behind the one that follows."""
    if not isinstance(node, ast.Assign | ast.AugAssign | ast.Expr | ast.If | ast.AnnAssign):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    yield context.edit(REMOVAL, node, "pass")
    after = context.after(node)
    if after is None or isinstance(after, ast.FunctionDef | ast.Return):
        return
    if (after.end_lineno or after.lineno) - node.lineno < _MOST_EXCHANGED:
        yield context.exchanged(2, node, after)


def of_branch(node: ast.If, context: Context) -> Edits:
    """Yield the branch always, never, and the other way round."""
    yield context.edit(1, node.test, f"not {context.text(node.test)}")
    for text in ("True", "False"):
        yield context.edit(REMOVAL, node.test, text)


def of_call(node: ast.Call, context: Context) -> Edits:
    """Yield what a function is given, other functions, and other arguments."""
    function = node.func
    if isinstance(function, ast.Attribute):
        if context.is_value(function.value):
            yield context.edit(1, node, context.text(function.value))
        for names in _EXCHANGED:
            for other in sorted(names - {function.attr}) if function.attr in names else ():
                yield context.edit(1, function, f"{context.plain(function.value)}.{other}")
    given = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
    for argument in given:
        if not isinstance(argument, ast.Constant) and context.is_value(argument):
            yield context.edit(REMOVAL, node, context.text(argument))
    for one, next_one in itertools.pairwise(given):
        yield context.exchanged(2, one, next_one)
    yield from _other_arguments(node, context)


def _other_arguments(node: ast.Call, context: Context) -> Edits:
    """Yield calls with an argument less, and with one more that has a name of its own."""
    parts = [context.plain(part) for part in (*node.args, *node.keywords)]
    function = context.plain(node.func)
    for i in range(len(parts)):
        if i >= len(node.args) or 0 < i == len(parts) - 1:
            yield context.edit(3, node, f"{function}({', '.join(parts[:i] + parts[i + 1 :])})")
    signature = context.signatures.get(function.rpartition(".")[2])
    if signature is None or function.endswith("__init__"):
        return
    names = context.names(node)
    taken = {keyword.arg for keyword in node.keywords}
    taken |= {argument.arg for argument in signature.args[: len(node.args)]}
    for name, default in _defaults(signature):
        if name in taken:
            continue
        is_flag = isinstance(default, ast.Constant) and isinstance(default.value, bool)
        flipped = (str(not getattr(default, "value", None)),) if is_flag else ()
        for value in (*(name,) * (name in names), *flipped):
            yield context.edit(1, node, f"{function}({', '.join([*parts, f'{name}={value}'])})")


def _defaults(signature: ast.arguments) -> Iterator[tuple[str, ast.expr]]:
    optional = signature.args[len(signature.args) - len(signature.defaults) :]
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
        yield context.edit(3, node, f":{upper}{step}")
        yield context.edit(3, node, f"({lower}) + 1:{upper}{step}")
        yield context.edit(3, node, f"({lower}) - 1:{upper}{step}")
    if upper:
        yield context.edit(3, node, f"{lower}:{step}")
        yield context.edit(3, node, f"{lower}:({upper}) + 1{step}")
        yield context.edit(3, node, f"{lower}:({upper}) - 1{step}")
    if bool(lower) != bool(upper):
        yield context.edit(2, node, f"{upper}:{lower}{step}")
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
        for part in context.parents
        if isinstance(part, ast.Subscript)
        and context.plain(part.slice) == index
        and context.statement(part) is context.statement(node)
        and part.lineno == node.lineno
    ]
    uppers = (part.upper for part in context.parents if isinstance(part, ast.Slice))
    for text in dict.fromkeys(context.plain(upper) for upper in uppers if upper is not None):
        if not text.startswith("-"):
            nodes = [part.slice for part in others]
            yield context.everywhere(4, nodes, f"{index}, :{text}")
