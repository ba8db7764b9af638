"""The text of a file with the nodes of its syntax, and changes of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from attnbench_mend.traced_lines import Kind


@dataclass(frozen=True)
class Edit:
    """A change of a text.

    Args:
        rank: how far it goes.
        line: the first line that changes.
        start, end: places in the text, counted in characters.
        old, new: what is changed, and into what.
    """

    rank: int
    line: int
    start: int
    end: int
    old: str
    new: str

    def applied(self, text: str) -> str:
        """The changed text."""
        return text[: self.start] + self.new + text[self.end :]


Proposal = tuple[int, cst.CSTNode | tuple[cst.CSTNode, cst.CSTNode], str]
"""A rank, the node that is replaced or the first and the last of several, and by what."""


class SourceText:
    """A file, and what its lines could read when they ran.

    Args:
        text: of the file.
        ran: kinds of names by the number of a line that ran.
    """

    def __init__(self, text: str, ran: Mapping[int, Mapping[str, Kind]]) -> None:
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        self.module, self.text, self.ran = wrapper.module, text, ran
        self.positions = wrapper.resolve(PositionProvider)
        self.parents = wrapper.resolve(ParentNodeProvider)
        self.starts = [0]
        for line in text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def code(self, node: cst.CSTNode) -> str:
        """A node as it stands in the file, without parentheses around it."""
        is_empty = isinstance(node, cst.Tuple) and not node.elements  # its parentheses are it
        has_own = hasattr(node, "lpar") and not is_empty
        bare = node.with_changes(lpar=[], rpar=[]) if has_own else node
        return self.module.code_for_node(bare).strip()

    def atom(self, node: cst.BaseExpression) -> str:
        """The same as an operand of anything."""
        simple = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.BaseNumber, cst.BaseList)
        code = self.code(node)
        return code if isinstance(node, simple) else f"({code})"

    def line(self, node: cst.CSTNode) -> int:
        """The line in which a node begins."""
        return int(self.positions[node].start.line)

    def names(self, node: cst.CSTNode) -> Mapping[str, Kind]:
        """The kinds of the names that the lines of a node could read."""
        place, found = self.positions[node], dict[str, Kind]()
        for line in range(place.start.line, place.end.line + 1):
            found |= self.ran.get(line, {})
        statement = self._statement(node)
        return found or self.ran.get(self.line(statement), {})

    def has_run(self, node: cst.CSTNode) -> bool:
        """Whether the statement of a node ran."""
        statement = self._statement(node)
        return self.line(node) in self.ran or self.line(statement) in self.ran

    def _statement(self, node: cst.CSTNode) -> cst.CSTNode:
        while node in self.parents and not isinstance(
            node, cst.SimpleStatementLine | cst.BaseCompoundStatement
        ):
            node = self.parents[node]
        return node

    def edit(self, proposal: Proposal) -> Edit | None:
        """A proposal as a change of the text, if it is one that keeps the number of lines."""
        rank, nodes, new = proposal
        first, last = nodes if isinstance(nodes, tuple) else (nodes, nodes)
        start, end = self.span(first)[0], self.span(last)[1]
        old = self.text[start:end]
        if new == old or new.count("\n") != old.count("\n"):
            return None
        return Edit(rank, self.line(first), start, end, old, new)

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Where a node begins and ends in the text, counted in characters."""
        place = self.positions[node]
        ends = (place.start.line, place.start.column), (place.end.line, place.end.column)
        start, end = (self.starts[line - 1] + column for line, column in ends)
        return start, end
