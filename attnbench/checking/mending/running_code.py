"""The code of a subject as it runs: which lines, what their names hold, and other code instead."""

from __future__ import annotations
import __future__

import ast
import contextlib
import copy
import functools
import gc
import linecache
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.checking.mending.edit_context import Kind
from attnbench.processes.tracebacks import is_own_code

_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag

_MOST_ATTRIBUTES = 60

_MOST_TIMES = 16
"""Most times that a line tells what its names hold: the last of them counts, as the first call is
often one in which numbers are zero or alike."""


class RunLines:
    """The lines of the user's code that ran, by file, and what the names in them held.

    Args:
        apart: code whose lines, and those of what it calls, do not count, as of a reference.
        files_apart: files whose lines do not count.

    Attributes:
        lines_apart: files and lines of the code apart.
        ran: by file and line, the names that the line could read, with the kinds of their values.
    """

    def __init__(self, apart: set[CodeType], files_apart: set[str]) -> None:
        self.apart, self.files_apart, self._aside = apart, files_apart, 0
        self.lines_apart = {
            (code.co_filename, line) for code in apart for *_, line in code.co_lines() if line
        }
        self.ran: dict[str, dict[int, dict[str, Kind]]] = {}
        self._times = Counter[tuple[str, int]]()

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note the lines that run within."""
        before = sys.gettrace()
        sys.settrace(self._at_call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _at_call(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        code = frame.f_code
        if code in self.apart:
            self._aside += 1
            return self._at_return
        file = code.co_filename
        if self._aside or file in self.files_apart or not _is_changeable(file):
            return None
        return self._at_line

    def _at_return(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        self._aside -= event == "return"
        return self._at_return

    def _at_line(self, frame: FrameType, event: str, _: object) -> Callable[..., Any]:
        if event == "line":
            lines = self.ran.setdefault(frame.f_code.co_filename, {})
            place = frame.f_code.co_filename, frame.f_lineno
            self._times[place] += 1
            if self._times[place] <= _MOST_TIMES:
                known = lines.setdefault(frame.f_lineno, {})
                for name, kind in _kinds(frame).items():
                    known[name] = _with_history(known.get(name, ()), kind)
        return self._at_line


def _with_history(before: Kind, kind: Kind) -> Kind:
    """A kind with the values that a number has had: equal ones may differ at another time."""
    if kind[0] != "number":
        return kind
    return (*kind, (*before[2], kind[1]) if before[:1] == kind[:1] else (kind[1],))


@functools.cache
def _is_changeable(file: str) -> bool:
    """Whether a file is the user's own, and not that of an installed library."""
    return is_own_code(file) and not {"site-packages", "dist-packages"} & {*Path(file).parts}


def _kinds(frame: FrameType) -> dict[str, Kind]:
    given = {name: v for name, v in frame.f_globals.items() if type(v) in (int, float)}
    names = {name: kind_of(value) for name, value in {**given, **frame.f_locals}.items()}
    owner = frame.f_locals.get("self", frame.f_locals.get("ctx"))
    if owner is not None:
        name = "self" if "self" in frame.f_locals else "ctx"
        parts = dict(vars(owner)) if hasattr(owner, "__dict__") else {}
        if isinstance(owner, nn.Module):
            for store in ("_parameters", "_buffers", "_modules"):
                parts |= parts.get(store) or {}
        for part, value in list(parts.items())[:_MOST_ATTRIBUTES]:
            if not part.startswith("_") and part != "training":
                names[f"{name}.{part}"] = kind_of(value)
    return {name: kind for name, kind in names.items() if kind}


def kind_of(value: Any) -> Kind:
    """What a value is; empty if nothing can take its place."""
    if isinstance(value, Tensor):
        with contextlib.suppress(Exception):  # a nested or unfinished one has no shape
            return ("tensor", value.dim(), _sort(value.dtype), tuple(value.shape))
        return ()
    if isinstance(value, bool | int | float):
        return ("number", value)
    if isinstance(value, nn.Module):
        return ("module", type(value).__name__)
    return ()


def _sort(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "bool"
    if dtype.is_complex:
        return "complex"
    return "floating" if dtype.is_floating_point else "whole"


class SourceFile:
    """A file of the user's code, which can run with changes.

    Args:
        name: its path, as code objects have it.

    Attributes:
        lines: its lines.
        definitions: what stands at its top.
        signatures: arguments of its functions and classes, by name.

    Raises:
        SyntaxError: it is no Python.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines = [line.rstrip("\n") for line in linecache.getlines(name)]
        tree = ast.parse("\n".join(self.lines))
        self.definitions, self.signatures = list(_definitions(tree)), signatures_of(tree)
        self._functions: dict[_Key, list[FunctionType]] = {}
        for thing in gc.get_objects():
            if type(thing) is FunctionType and thing.__code__.co_filename == name:
                self._functions.setdefault(_key(thing.__code__), []).append(thing)
                thing.__globals__.setdefault("copy", copy)  # as changed code may import it
        functions = (each for group in self._functions.values() for each in group)
        self._flags = next((each.__code__.co_flags & _FUTURE for each in functions), 0)
        whole = self._compiled("\n".join(self.lines))
        self._as_read = {_key(part): part for part in _inner(whole)}

    @contextlib.contextmanager
    def running(self, definition: ast.stmt, lines: list[str]) -> Iterator[bool]:
        """Let a definition run as it stands in other lines; whether it does.

        It does not where these are no Python, where its functions were not made of the file as it
        is now, and where several of them cannot be told apart.
        """
        before: list[tuple[FunctionType, CodeType]] = []
        try:
            for part in self._parts(definition, lines):
                for function in self._functions.get(_key(part), ()):
                    code = function.__code__
                    is_as_read = code == self._as_read.get(_key(part))
                    if is_as_read and code.co_freevars == part.co_freevars:
                        before.append((function, code))
                        function.__code__ = part
            yield bool(before)
        finally:
            for function, code in reversed(before):
                function.__code__ = code

    def _parts(self, definition: Any, lines: list[str]) -> list[CodeType]:
        """The code of the functions in a definition, each of a place of its own; else none."""
        first = min([definition.lineno, *(d.lineno for d in _decorators(definition))])
        text = "\n".join(lines[first - 1 : definition.end_lineno])
        head = "\n" * (first - 1)
        if definition.col_offset:
            head = "\n" * (first - 2) + "if True:\n"
        try:
            code = self._compiled(head + text)
        except (SyntaxError, ValueError):
            return []
        found = [p for p in _inner(code) if p.co_name[0] != "<" or p.co_name == "<lambda>"]
        return found if len({_key(part) for part in found}) == len(found) else []

    def _compiled(self, text: str) -> CodeType:
        code: CodeType = compile(text, self.name, "exec", flags=self._flags, dont_inherit=True)
        return code


_Key = tuple[str, int]


def _key(code: CodeType) -> _Key:
    return code.co_name, code.co_firstlineno


def _decorators(definition: Any) -> list[ast.expr]:
    found: list[ast.expr] = getattr(definition, "decorator_list", [])
    return found


def _definitions(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield the functions, classes and assignments of a module, also those in its branches."""
    for node in getattr(tree, "body", []):
        if isinstance(node, ast.If | ast.Try | ast.With):
            yield from _definitions(node)
        elif isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign
        ):
            yield node


def signatures_of(tree: ast.AST) -> dict[str, ast.arguments]:
    """Arguments of functions and, under the name of the class, of what makes its objects."""
    found: dict[str, ast.arguments] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, node.args)
        for part in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(part, ast.FunctionDef) and part.name == "__init__":
                found[getattr(node, "name", "")] = part.args
    return found


def _inner(code: CodeType) -> Iterator[CodeType]:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield part
            yield from _inner(part)
