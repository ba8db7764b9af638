"""Small changes of calls of torch: the other forms in which its functions are meant."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from attnbench.checking.mending.edit_context import Context, Edit, Edits, is_count

_HEADS = "{value}.transpose(1, 2).reshape({rest})"
_FROM_THE_END = "{function}({given}{offset} + {value}.shape[-1] - {value}.shape[-2])"
_WITHOUT_INFINITY = '({own} - float("inf"))'

_FORMS: dict[str, tuple[tuple[int, str], ...]] = {
    "zeros": ((3, _WITHOUT_INFINITY),),
    "zeros_like": ((3, _WITHOUT_INFINITY),),
    "new_zeros": ((3, _WITHOUT_INFINITY),),
    "view": ((4, _HEADS),),
    "reshape": ((4, _HEADS),),
    "exp": ((4, "torch.exp({value} - {value}.amax(dim=-1, keepdim=True))"),),
    "triu": ((3, _FROM_THE_END),),
    "tril": ((3, _FROM_THE_END),),
    "cdiv": ((4, "({value} // {first})"),),
    "searchsorted": ((2, "{open}, right=True)"),),
    "bucketize": ((2, "{open}, right=True)"),),
    "pad": ((2, "{open}, value=True)"), (4, '{open}, value=float("-inf"))')),
    "softmax": ((4, "{open}, dtype=torch.float32)"), (4, "{own}.nan_to_num()")),
    **dict.fromkeys(("sqrt", "rsqrt", "log"), ((4, "{value}.clamp_min(1e-12).{name}()"),)),
    "cdist": ((2, '{open}, compute_mode="donot_use_mm_for_euclid_dist")'),),
    "dropout": ((1, "{open}, training=self.training)"),),
}
"""Other forms of a call, with their ranks.

``own`` is the call, ``name`` that of its function, ``open`` the call up to its last argument,
``value`` what a method belongs to or a function's first argument, ``rest`` the other arguments,
``first`` the first of them, ``offset`` the same as a sum's first part, and ``given`` a function's
first argument with a comma.
"""

_WITHOUT_AXIS = ("squeeze", "sum", "mean", "max", "min", "amax", "amin", "norm", "any", "all")
"""Functions that mean every axis where they are given none."""

_ALONG = {"max": "amax", "min": "amin"}
"""Functions that take several axes, for those that give two results where they are given one."""

_KEYWORDS = ("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
"""Arguments of ``scaled_dot_product_attention`` that have a name."""


_LAYOUT = ("view", "reshape", "transpose", "swapaxes", "permute", "unflatten")
"""Methods that give a tensor in another layout."""


def of_call(node: ast.Call, context: Context) -> Edits:
    """Yield the other forms of a call of torch, and of what it gives."""
    own, name = context.plain(node), context.plain(node.func).rpartition(".")[2]
    is_method = isinstance(node.func, ast.Attribute) and context.is_value(node.func.value)
    parts = _parts(node, context, is_method)
    for rank, form in _FORMS.get(name, ()) if parts["value"] else ():
        if parts["first"] or "{first}" not in form:
            yield from _everywhere(node, context, rank, form)
    if name in _WITHOUT_AXIS and is_method and not node.args and not node.keywords:
        function = parts["function"].removesuffix(name) + _ALONG.get(name, name)
        yield context.edit(2, node, f"{function}(-1)")
        if name != "squeeze":
            yield context.edit(2, node, f"{function}(-1, keepdim=True)")
    if name in ("repeat", "cat"):
        for text in _interleaved(node, context):
            yield context.edit(2, node, text)
    if name in ("view", "reshape") and is_method:
        for text in _exchanged_axes(node, context):
            yield context.edit(4, node, f"{parts['value']}.reshape({text}")
    if name == "scaled_dot_product_attention":
        for text in _options(node, context):
            yield context.edit(1, node, f"{parts['open']}, {text})")
    yield from _results(node, context, is_method)
    if own.replace("'", '"') == 'float("-inf")':
        yield context.edit(3, node, "torch.finfo(torch.float32).min")


def of_choice(node: ast.Call, context: Context) -> Edits:
    """Yield the other value of a choice, moved by a number, where one is a constant."""
    counts = [name for name, kind in context.names(node).items() if is_count(kind)]
    is_choice = context.plain(node.func).endswith("where") and len(node.args) == 3
    for value, other in itertools.permutations(node.args[1:]) if is_choice else ():
        if isinstance(value, ast.Constant | ast.UnaryOp):
            for count, sign in itertools.product(counts, "-+"):
                yield context.edit(4, value, f"{context.text(other)} {sign} {count}")


def _interleaved(node: ast.Call, context: Context) -> Iterator[str]:
    """Yield a tensor whose parts are repeated in place, where it is repeated as a whole."""
    first = node.args[0] if node.args else None
    if (
        isinstance(first, ast.BinOp)
        and isinstance(first.left, ast.List)
        and len(first.left.elts) == 1
    ):
        count, axes = context.plain(first.right), [context.plain(k) for k in node.keywords]
        axis = next(iter([*axes, *map(context.plain, node.args[1:])]), "0").rpartition("=")[2]
        yield f"{context.text(first.left.elts[0])}.repeat_interleave({count}, dim={axis.strip()})"
    if isinstance(node.func, ast.Attribute) and node.func.attr == "repeat":
        sizes = [context.plain(size) for size in node.args]
        counts = [i for i, size in enumerate(sizes) if size != "1" and not size.startswith("*")]
        if len(counts) == 1:
            value, place = context.text(node.func.value), counts[0]
            yield f"{value}.repeat_interleave({sizes[place]}, dim={place})"


def _results(node: ast.Call, context: Context, is_method: bool) -> Edits:
    """Yield another form of what a call gives."""
    own, function = context.plain(node), context.plain(node.func)
    yield context.edit(5, node, f"{own}.float()")
    if function.endswith("arange"):
        for other, kind in context.names(node).items():
            if is_count(kind):
                yield context.edit(4, node, f"({own} + {other})")
                yield context.edit(4, node, f"({own} - {other})")
    is_used = not isinstance(context.parents.get(node), ast.Expr)
    if is_method and function.endswith("_") and is_used:
        yield context.edit(2, node.func, function.rstrip("_"))


def _parts(node: ast.Call, context: Context, is_method: bool) -> dict[str, str]:
    """The parts of a call, as the forms name them."""
    own, function = context.plain(node), context.plain(node.func)
    given = [context.plain(part) for part in (*node.args, *node.keywords)]
    value = ""
    if isinstance(node.func, ast.Attribute) and is_method:
        value, rest = context.text(node.func.value), given
    else:
        value, rest = (context.text(node.args[0]) if node.args else ""), given[1:]
    return {
        "own": own,
        "name": function.rpartition(".")[2],
        "open": f"{function}({', '.join(given)}",
        "function": function,
        "value": value,
        "rest": ", ".join(rest),
        "first": rest[0] if rest else "",
        "offset": rest[0] if rest else "0",
        "given": "" if is_method else f"{value}, ",
    }


def _everywhere(node: ast.Call, context: Context, rank: int, form: str) -> Edits:
    """Yield a form of one call, and of all calls of its function in the definition."""
    alike = context.calls.get(context.plain(node.func), [])
    calls = [other for other in alike if len(other.args) == len(node.args)]
    is_method = isinstance(node.func, ast.Attribute) and context.is_value(node.func.value)
    text = form.format_map(_parts(node, context, is_method))
    yield context.edit(rank, node, text)
    if len(calls) > 1 and node is min(calls, key=lambda call: (call.lineno, call.col_offset)):
        pairs = [(c, form.format_map(_parts(c, context, is_method))) for c in calls]
        yield from context.together(rank + 1, pairs)


def _exchanged_axes(node: ast.Call, context: Context) -> Iterator[str]:
    """Yield the sizes of a shape with two neighbours exchanged, and these exchanged back."""
    sizes = [context.plain(size) for size in node.args]
    for i in range(len(sizes) - 1):
        if not sizes[i].startswith("*"):
            other = [*sizes[:i], sizes[i + 1], sizes[i], *sizes[i + 2 :]]
            back = f"{i - len(sizes)}, {i + 1 - len(sizes)}"
            yield f"{', '.join(other)}).transpose({back})"


def _options(node: ast.Call, context: Context) -> Iterator[str]:
    """Yield arguments of attention that a call leaves out."""
    names, taken = context.names(node), {keyword.arg for keyword in node.keywords}
    read = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    for name in _KEYWORDS:
        if name not in taken and name in names:
            yield f"{name}={name}"
    for name, kind in names.items() if "attn_mask" not in taken else ():
        if kind[0] == "tensor" and name not in read and len(node.args) < len(_KEYWORDS) - 1:
            yield f"attn_mask={name}"
    if "is_causal" not in taken:
        yield "is_causal=True"


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
    for pair in pairs[:48]:  # of all, as trials take time
        yield from context.together(4, pair)
