"""The other forms of torch's calls, for which one is mistaken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from attnbench_mend.source_text import SourceText

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "scaled_dot_product_attention": (
        *("attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"),
    ),
}
"""Options of functions that are passed on under their own name."""

_AT_THE_END = "{function}({given}{offset} + {value}.shape[-1] - {value}.shape[-2])"

_FORMS: Mapping[str, tuple[tuple[int, str], ...]] = {
    "tril": ((2, _AT_THE_END),),
    "triu": ((2, _AT_THE_END),),
    "softmax": ((3, "{own}.nan_to_num(0.0)"), (3, "{open}, dtype=torch.float32)")),
    "exp": ((3, "({value} - {value}.amax(-1, keepdim=True)).exp()"),),
    "view": ((3, "{value}.reshape({rest})"), (4, "{value}.transpose(1, 2).reshape({rest})")),
    "reshape": ((4, "{value}.transpose(1, 2).reshape({rest})"),),
    "dropout": ((1, "{open}, training=self.training)"),),
    "sqrt": ((4, "{value}.clamp_min(1e-12).sqrt()"),),
    "log": ((4, "{value}.clamp_min(1e-12).log()"),),
    "half": ((2, "{value}.float()"),),
    "masked_fill": ((1, "{value}.masked_fill(~({first}), {second})"),),
    "where": ((2, "torch.where(~({value}), {rest})"),),
}
"""Other forms of a call, with their ranks.

``own`` is the call, ``open`` the call up to its last argument, ``value`` what a method belongs to
or a function's first argument, ``rest`` the other arguments, ``first`` and ``second`` those,
``offset`` the first of them or 0, and ``given`` a function's first argument with a comma.
"""


def with_other_form(
    node: cst.Call, source: SourceText, counts: Sequence[str]
) -> Iterator[tuple[int, str]]:
    """Yield ranks and other forms of a call.

    Args:
        node: the call.
        source: where it stands.
        counts: names of whole numbers that it could read.
    """
    own, function = source.code(node), source.code(node.func)
    name = function.rpartition(".")[2]
    plain = [source.code(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in node.args]
    if isinstance(node.func, cst.Attribute) and not _is_module(node.func.value):
        value, rest, given = source.atom(node.func.value), plain, ""
    else:
        value = source.atom(node.args[0].value) if node.args else ""
        rest, given = plain[1:], f"{value}, "
    first, second = (*rest, "", "")[:2]
    parts = {"own": own, "function": function, "open": f"{function}({', '.join(plain)}"}
    parts |= {"value": value, "rest": ", ".join(rest), "given": given}
    parts |= {"first": first, "second": second, "offset": first or "0"}
    for rank, form in _FORMS.get(name, ()) if value else ():
        if first or "{first}" not in form:
            yield rank, form.format_map(parts)
    if name == "arange":
        yield from ((3, f"({own} {sign} {count})") for count in counts for sign in "+-")
    if name == "repeat" and value:
        yield from _in_place_of_repeat(value, rest)
    if name == "repeat_interleave" and len(rest) > 1:
        axis = rest[1].rpartition("=")[2]
        yield 2, f"torch.cat([{value}] * {rest[0]}, {axis.strip()})"
    if name.endswith("_") and not name.endswith("__"):
        yield 2, own.replace(f".{name}(", f".{name.rstrip('_')}(", 1)
        if isinstance(node.func, cst.Attribute) and isinstance(node.func.value, cst.Name):
            yield 2, f"{value} = {own.replace(f'.{name}(', f'.{name[:-1]}(', 1)}"


def _in_place_of_repeat(value: str, sizes: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Parts repeated one by one, where they are repeated as a whole."""
    more = [place for place, size in enumerate(sizes) if size.strip() != "1"]
    if len(more) == 1:
        yield 2, f"{value}.repeat_interleave({sizes[more[0]]}, dim={more[0] - len(sizes)})"


def _is_module(node: cst.BaseExpression) -> bool:
    """Whether a function belongs to a module of torch, and is no method of a tensor."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return isinstance(node, cst.Name) and node.value in ("torch", "F", "nn", "math")
