"""A change of source text, and what the places of a definition can read."""

from __future__ import annotations

import ast
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Kind = tuple[Any, ...]
"""What a value is, as far as another could take its place."""

Head = tuple[type[ast.AST], object]
"""The kind of an expression, and its operator, function or value."""

SMALLEST = 1
"""The rank of what another person would take for a slip: a flag, a comparison, another function."""

REMOVAL = 6
"""The rank of what leaves something out: it may hide a mistake with all that depends on it."""

STATEMENT = 7
"""The rank of what leaves out a statement or a branch."""

_ATOMS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant, ast.Tuple, ast.List)


_LAST = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Return,
    ast.Raise,
    ast.Break,
    ast.Continue,
)
"""Statements over which no other is moved."""


@dataclass(frozen=True)
class Edit:
    """Another text in place of a part of the source.

    Args:
        rank: how far it goes; small ones are tried first.
        start, end: line, from 1, and column in bytes of both ends.
        text: what takes the place of what stands there.
    """

    rank: int
    start: tuple[int, int]
    end: tuple[int, int]
    text: str

    def applied(self, lines: list[str]) -> list[str]:
        """The lines of the source with the change; their number stays the same."""
        (first, left), (last, right) = self.start, self.end
        head = lines[first - 1].encode()[:left].decode()
        tail = lines[last - 1].encode()[right:].decode()
        changed = (head + self.text + tail).split("\n")
        rest = last - first + 1 - len(changed)
        return [*lines[: first - 1], *changed, *[""] * rest, *lines[last:]]


Edits = Iterator[Edit]


@dataclass
class _Span:
    lineno: int
    col_offset: int
    end_lineno: int
    end_col_offset: int


class Context:
    """A definition, its text, and what its lines can read.

    Args:
        tree: the syntax tree of a top-level definition.
        source: the lines of the whole file.
        ran: by line that ran, the names that it could read, with the kinds of their values.
        signatures: arguments of the functions and classes of the file.
        others: the syntax trees of the other definitions.

    Attributes:
        nodes: all of the definition.
        parents: by node of any definition, the one in which it stands.
        alike: by head, the expressions that ran.
        assigned: by name, the texts of the expressions that it is set to.
        reads: by line and name, where the name is read.
        calls: by function, as written, the calls that ran.
        cuts: by line, the subscripts.
        sums: sums and differences, also of lines that did not run.
    """

    def __init__(
        self,
        tree: ast.AST,
        source: list[str],
        ran: Mapping[int, Mapping[str, Kind]],
        signatures: Mapping[str, ast.arguments],
        others: Iterable[ast.AST] = (),
    ) -> None:
        self.source, self.ran, self.signatures = source, ran, signatures
        self.nodes = [child for p in ast.walk(tree) for child in ast.iter_child_nodes(p)]
        everywhere = [node for one in (tree, *others) for node in ast.walk(one)]
        self.parents = {child: p for p in everywhere for child in ast.iter_child_nodes(p)}
        self.reads = defaultdict[tuple[int, str], list[ast.Name]](list)
        self.calls = defaultdict[str, list[ast.Call]](list)
        self.cuts = defaultdict[int, list[ast.Subscript]](list)
        self.sums = list[ast.BinOp]()
        self.alike = defaultdict[Head | None, list[ast.expr]](list)
        for node in self.parents:
            if isinstance(node, ast.expr) and self.has_run(node):
                self.alike[self.head(node)].append(node)
        self.assigned = defaultdict[str, set[str]](set)
        for node in self.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self.reads[node.lineno, node.id].append(node)
            elif isinstance(node, ast.Call) and self.has_run(node):
                self.calls[self.plain(node.func)].append(node)
            elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
                self.sums.append(node)
            elif isinstance(node, ast.Subscript):
                self.cuts[node.lineno].append(node)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.assigned[node.targets[0].id].add(self.text(node.value))

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The statement in which a node stands."""
        found: ast.AST | None = node
        while found is not None and not isinstance(found, ast.stmt):
            found = self.parents.get(found)
        return found

    def function(self, node: ast.AST) -> ast.AST | None:
        """The innermost function in which a node stands."""
        found = self.parents.get(node)
        while found is not None and not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
            found = self.parents.get(found)
        return found

    def has_run(self, node: ast.AST) -> bool:
        """Whether the statement in which a node stands has run."""
        statement = self.statement(node)
        return statement is not None and statement.lineno in self.ran

    def names(self, node: ast.AST) -> Mapping[str, Kind]:
        """The names that can be read where a node stands, with the kinds of their values."""
        statement = self.statement(node)
        return {} if statement is None else self.ran.get(statement.lineno, {})

    def is_value(self, node: ast.AST) -> bool:
        """Whether a node is made of values of the function, and not a module or a class."""
        while isinstance(node, ast.Attribute | ast.Subscript | ast.Call):
            node = node.func if isinstance(node, ast.Call) else node.value
            if isinstance(node, ast.Attribute) and self.plain(node) in self.names(node):
                return True
        return not isinstance(node, ast.Name) or node.id in self.names(node)

    def behind(self, node: ast.stmt) -> list[Any]:
        """The statements behind one in the same block, up to one that defines or leaves."""
        parent = self.parents.get(node)
        blocks = (getattr(parent, name, None) for name in ("body", "orelse", "finalbody"))
        block = next((b for b in blocks if isinstance(b, list) and node in b), [])
        rest = block[block.index(node) + 1 :] if block else []
        return list(itertools.takewhile(lambda one: not isinstance(one, _LAST), rest))

    def head(self, node: ast.expr) -> Head | None:
        """The head of an expression of several parts; ``None`` for any other."""
        if isinstance(node, ast.BinOp):
            return ast.BinOp, type(node.op)
        if isinstance(node, ast.Call):
            return ast.Call, self.plain(node.func).rpartition(".")[2]
        if isinstance(node, ast.Subscript):
            return ast.Subscript, self.plain(node.value)
        return (ast.Compare, None) if isinstance(node, ast.Compare) else None

    def never_read(self) -> set[str]:
        """The names that the definition sets and never reads."""
        names = {node.id for node in self.nodes if isinstance(node, ast.Name)}
        return names - {name for _, name in self.reads}

    def text(self, node: ast.AST) -> str:
        """The source of a node, in parentheses where it needs them."""
        text = self.plain(node)
        return text if isinstance(node, _ATOMS) else f"({text})"

    def plain(self, node: Any) -> str:
        """The source of a node."""
        first, last = node.lineno, node.end_lineno
        lines = [line.encode() for line in self.source[first - 1 : last]]
        lines[-1] = lines[-1][: node.end_col_offset]
        lines[0] = lines[0][node.col_offset :]
        return b"\n".join(lines).decode()

    def replaced(self, whole: Any, part: Any, text: str) -> str:
        """The source of a node with another text in place of a node in it."""
        head = _Span(whole.lineno, whole.col_offset, part.lineno, part.col_offset)
        tail = _Span(part.end_lineno, part.end_col_offset, whole.end_lineno, whole.end_col_offset)
        return self.plain(head) + text + self.plain(tail)

    def edit(self, rank: int, node: Any, text: str) -> Edit:
        """Another text in place of a node."""
        start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        return Edit(rank, start, end, text)

    def together(self, rank: int, pairs: Collection[tuple[Any, str]]) -> Edits:
        """Yield one change of several nodes, each with its text, unless one is within another."""
        ordered = sorted(pairs, key=lambda pair: (pair[0].lineno, pair[0].col_offset))
        nodes = [node for node, _ in ordered]
        ends = [(node.end_lineno, node.end_col_offset) for node in nodes[:-1]]
        starts = [(node.lineno, node.col_offset) for node in nodes[1:]]
        if all(end <= start for end, start in zip(ends, starts, strict=True)):
            text = ordered[0][1]
            for (one, _), (other, replaced) in itertools.pairwise(ordered):
                text += self.plain(gap(one, other)) + replaced
            yield self.edit(rank, spanned(nodes[0], nodes[-1]), text)

    def exchanged(self, rank: int, one: Any, other: Any) -> Edit:
        """Two nodes in the opposite order."""
        text = self.plain(other) + self.plain(gap(one, other)) + self.plain(one)
        return self.edit(rank, spanned(one, other), text)

    def between(self, rank: int, one: Any, other: Any, text: str) -> Edit:
        """Another text in place of what stands between two nodes, parentheses kept."""
        middle = gap(one, other)
        before = self.plain(middle)
        stripped = before.strip(" ()\n")
        return self.edit(rank, middle, before.replace(stripped, text, 1) if stripped else before)


def spanned(first: Any, last: Any) -> Any:
    """What stands from one node to the end of another."""
    return _Span(first.lineno, first.col_offset, last.end_lineno, last.end_col_offset)


def gap(one: Any, other: Any) -> _Span:
    """What stands between two nodes."""
    return _Span(one.end_lineno, one.end_col_offset, other.lineno, other.col_offset)


def is_count(kind: Kind) -> bool:
    """Whether a value is a whole number, and no truth value."""
    return kind[0] == "number" and isinstance(kind[1], int) and not isinstance(kind[1], bool)
