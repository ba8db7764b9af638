"""Small changes of a file's text, the smallest first: one other operator, number, name or form.

Nothing here leaves out a statement, a branch or an operand: what merely passes by the lines that
fail is no remedy. All keep the number of lines, so that what is behind stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import libcst as cst

from attnbench_mend.call_forms import OPTIONS, with_other_form
from attnbench_mend.source_text import Edit, Proposal, SourceText
from attnbench_mend.traced_lines import Kind

_OTHER: Mapping[type[cst.CSTNode], tuple[str, ...]] = {
    cst.LessThan: ("<=", ">"),
    cst.LessThanEqual: ("<", ">="),
    cst.GreaterThan: (">=", "<"),
    cst.GreaterThanEqual: (">", "<="),
    cst.Equal: ("!=",),
    cst.NotEqual: ("==",),
    cst.Add: ("-",),
    cst.Subtract: ("+",),
    cst.Multiply: ("/",),
    cst.Divide: ("*",),
    cst.FloorDivide: ("%",),
    cst.Modulo: ("//",),
    cst.BitAnd: ("|",),
    cst.BitOr: ("&",),
}
"""The operators for which one is mistaken."""

_ORDERED = (cst.Subtract, cst.Divide, cst.FloorDivide, cst.Modulo, cst.MatrixMultiply)
"""Operators whose operands do not commute."""

_NARROW = ("float16", "bfloat16", "half")
"""Types that lose what a wider one keeps."""

_Changes = Iterator[Proposal]


def edits(text: str, ran: Mapping[int, Mapping[str, Kind]]) -> list[Edit]:
    """The changes of the lines of a file that ran, the smallest first."""
    source = SourceText(text, ran)
    found: dict[tuple[int, int, str], Edit] = {}
    for node in source.positions:
        for kind, changes in _CHANGES:
            if isinstance(node, kind) and source.has_run(node):
                for edit in filter(None, map(source.edit, changes(node, source))):
                    found.setdefault((edit.start, edit.end, edit.new), edit)
    return sorted(found.values(), key=lambda edit: edit.rank)


def _of_comparison(node: cst.Comparison, source: SourceText) -> _Changes:
    for part in node.comparisons:
        for other in _OTHER.get(type(part.operator), ()):
            operator = source.code(part.operator)
            yield 1, part, source.code(part).replace(operator, other, 1)


def _of_binary(node: cst.BinaryOperation, source: SourceText) -> _Changes:
    left, right = source.atom(node.left), source.atom(node.right)
    operator = source.code(node.operator)
    for other in _OTHER.get(type(node.operator), ()):
        yield 2, node, f"({left} {other} {right})"
    if isinstance(node.operator, _ORDERED):
        yield 3, node, f"({right} {operator} {left})"
    inner = node.left
    if isinstance(inner, cst.BinaryOperation) and type(inner.operator) is not type(node.operator):
        first, second = source.atom(inner.left), source.atom(inner.right)
        within = source.code(inner.operator)
        yield 2, node, f"(({first} {operator} {right}) {within} {second})"
        yield 2, node, f"({first} {within} ({second} {operator} {right}))"


def _of_integer(node: cst.Integer, source: SourceText) -> _Changes:
    parent = source.parents.get(node)
    is_negative = isinstance(parent, cst.UnaryOperation) and isinstance(parent.operator, cst.Minus)
    value = -node.evaluated_value if is_negative else node.evaluated_value
    place = parent if parent is not None and is_negative else node
    for other in (value + 1, value - 1, -value):
        yield 1, place, str(other)
    if isinstance(source.parents.get(place), cst.Arg) and 0 <= value < 4:
        yield from ((2, place, str(axis)) for axis in (-1, -2, -3))


def _of_float(node: cst.Float, source: SourceText) -> _Changes:
    parent = source.parents.get(node)
    if isinstance(parent, cst.UnaryOperation):
        yield 1, parent, source.code(node)
        if node.evaluated_value > 1e3:
            yield 2, parent, 'float("-inf")'
    else:
        yield 1, node, f"-{source.code(node)}"


def _of_flag(node: cst.Name, source: SourceText) -> _Changes:
    """The other truth value of an argument; a branch is not decided."""
    if node.value in ("True", "False") and isinstance(source.parents.get(node), cst.Arg):
        yield 1, node, str(node.value == "False")


def _of_name(node: cst.Name, source: SourceText) -> _Changes:
    """Another value of the same kind, and another form of a value."""
    parent, names = source.parents.get(node), source.names(node)
    kind = names.get(node.value)
    is_target = isinstance(parent, cst.AssignTarget | cst.Param | cst.NameItem | cst.Attribute)
    is_word = isinstance(parent, cst.Arg) and parent.keyword is node
    if kind is None or is_target or is_word:
        return
    for name, other in names.items():
        if other == kind and name != node.value:
            yield (4 if "." in name else 2), node, name
    yield from ((rank, node, form) for rank, form in _forms(node.value, kind))


def _forms(own: str, kind: Kind) -> Iterator[tuple[int, str]]:
    """Other forms of a value, with their ranks."""
    if kind[0] == "count":
        yield from ((3, f"({own} {sign} 1)") for sign in "+-")
    if kind[0] != "tensor":
        return
    if kind[2] == "bool":
        yield 1, f"(~{own})"
    yield 4, f"{own}.clone()"
    if kind[2] == "floating":
        yield 4, f"{own}.float()"
    if kind[1] > 1:
        yield 4, f"{own}.mT"


def _of_attribute(node: cst.Attribute, source: SourceText) -> _Changes:
    """Another attribute of the same kind, a wider type, or a matrix as it was."""
    own, names = source.code(node), source.names(node)
    for name, other in names.items():
        if names.get(own) == other and name != own:
            yield 3, node, name
    if node.attr.value in _NARROW:
        yield 2, node, f"{source.code(node.value)}.float32"
    if node.attr.value in ("mT", "T"):
        yield 2, node, source.atom(node.value)


def _of_call(node: cst.Call, source: SourceText) -> _Changes:
    """Arguments exchanged, an option passed on, or another form of what torch offers."""
    function = source.code(node.func)
    plain = [source.code(arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for arg in node.args]
    for place, (one, other) in enumerate(pairwise(node.args)):
        if not (one.keyword or other.keyword or one.star or other.star):
            turned = [*plain[:place], plain[place + 1], plain[place], *plain[place + 2 :]]
            yield 3, node, f"{function}({', '.join(turned)})"
    names, inner = source.names(node), ", ".join(plain)
    for name in OPTIONS.get(function.rpartition(".")[2], ()):
        if name in names and name not in inner:
            yield 2, node, f"{function}({inner}, {name}={name})"
    counts = [name for name, kind in names.items() if kind == ("count",)]
    for rank, form in with_other_form(node, source, counts):
        yield rank, node, form


def _of_test(node: cst.If | cst.IfExp, source: SourceText) -> _Changes:
    """Whether there is a value, where 0 counts as none; and the other way round."""
    test = node.test
    if isinstance(test, cst.Name | cst.Attribute):
        yield 1, test, f"{source.code(test)} is not None"
    yield 3, test, f"not ({source.code(test)})"


def _of_words(node: cst.BooleanOperation, source: SourceText) -> _Changes:
    """A default for what is missing, where 0 counts as missing; and the other word."""
    left, right = source.atom(node.left), source.atom(node.right)
    if isinstance(node.operator, cst.Or):
        yield 2, node, f"({left} if {left} is not None else {right})"
    other = "or" if isinstance(node.operator, cst.And) else "and"
    yield 3, node, f"({left} {other} {right})"


def _of_parts(node: cst.Subscript | cst.Tuple, source: SourceText) -> _Changes:
    """Two neighbours exchanged, as axes of an index or of a shape."""
    parts = node.slice if isinstance(node, cst.Subscript) else node.elements
    for one, other in pairwise(parts):
        (start, end), (first, last) = source.span(one), source.span(other)
        texts = [source.text[start:end].rstrip(" ,"), source.text[first:last].rstrip(" ,")]
        yield 3, (one, other), f"{texts[1]}, {texts[0]}"


def _of_slice(node: cst.Slice, source: SourceText) -> _Changes:
    """The other end of what is cut."""
    bound = node.lower or node.upper
    if node.step is not None or bound is None or (node.lower and node.upper):
        return
    if isinstance(bound, cst.UnaryOperation) and isinstance(bound.operator, cst.Minus):
        bound = bound.expression
    code = source.atom(bound)
    for text in (f":{code}", f"{code}:", f"-{code}:", f":-{code}"):
        yield 2, node, text


def _of_update(node: cst.AugAssign, source: SourceText) -> _Changes:
    """A new value in place of a changed one, which its owner may need; and an assignment."""
    target, value = source.code(node.target), source.code(node.value)
    sign = source.code(node.operator).removesuffix("=")
    yield 2, node, f"{target} = {target} {sign} ({value})"
    yield 2, node, f"{target} = {value}"


def _of_statement(node: cst.SimpleStatementLine, source: SourceText) -> _Changes:
    """Behind the next one, as where something is kept before it is used, or after."""
    block = source.parents.get(node)
    body = list(block.body) if isinstance(block, cst.IndentedBlock) else [node]
    behind = body[body.index(node) + 1 :][:1]
    for other in behind:
        if isinstance(other, cst.SimpleStatementLine) and source.has_run(other):
            (start, end), (first, last) = source.span(node), source.span(other)
            parts = source.text[first:last], source.text[end:first], source.text[start:end]
            yield 3, (node, other), "".join(parts)


_CHANGES: tuple[tuple[Any, Callable[[Any, SourceText], _Changes]], ...] = (
    (cst.Comparison, _of_comparison),
    (cst.BinaryOperation, _of_binary),
    (cst.Integer, _of_integer),
    (cst.Float, _of_float),
    (cst.Name, _of_flag),
    (cst.Name, _of_name),
    (cst.Attribute, _of_attribute),
    (cst.Call, _of_call),
    (cst.If | cst.IfExp, _of_test),
    (cst.BooleanOperation, _of_words),
    (cst.Subscript | cst.Tuple, _of_parts),
    (cst.Slice, _of_slice),
    (cst.AugAssign, _of_update),
    (cst.SimpleStatementLine, _of_statement),
)
