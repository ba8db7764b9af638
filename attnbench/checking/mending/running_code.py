"""The code of a subject as it runs: which lines, what their names hold, and other code instead."""

from __future__ import annotations
import __future__

import ast
import contextlib
import functools
import gc
import linecache
import sys
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


class RunLines:
    """The lines of the user's code that ran, by file, and what the names in them held.

    Args:
        apart: code whose lines, and those of what it calls, do not count, as of a reference.
        files_apart: files whose lines do not count.
    """

    def __init__(self, apart: set[CodeType], files_apart: set[str]) -> None:
        self.apart, self.files_apart, self._aside = apart, files_apart, 0
        self.ran: dict[str, dict[int, dict[str, Kind]]] = {}

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
            if frame.f_lineno not in lines:
                lines[frame.f_lineno] = _kinds(frame)
        return self._at_line


@functools.cache
def _is_changeable(file: str) -> bool:
    """Whether a file is the user's own, and not that of an installed library."""
    return is_own_code(file) and "site-packages" not in Path(file).parts


def _kinds(frame: FrameType) -> dict[str, Kind]:
    names = {name: kind_of(value) for name, value in frame.f_locals.items()}
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
        return ("tensor", value.dim(), _sort(value.dtype), tuple(value.shape))
    if isinstance(value, bool | int | float):
        return ("number", value)
    if isinstance(value, nn.Module):
        return ("module", type(value).__name__)
    return ()


def _sort(dtype: torch.dtype) -> str:
    if dtype == torch.bool:
        return "bool"
    return "floating" if dtype.is_floating_point else "whole"


class SourceFile:
    """A file of the user's code, which can run with changes.

    Args:
        name: its path, as code objects have it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.lines = [line.rstrip("\n") for line in linecache.getlines(name)]
        self.tree = ast.parse("\n".join(self.lines))
        self.definitions = [
            node
            for node in self.tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign)
        ]
        self._functions: dict[tuple[str, int], list[FunctionType]] = {}
        for thing in gc.get_objects():
            if type(thing) is FunctionType and thing.__code__.co_filename == name:
                code = thing.__code__
                self._functions.setdefault((code.co_name, code.co_firstlineno), []).append(thing)

    def compiled(self, node: Any, lines: list[str]) -> CodeType:
        """The code of a top-level definition in some lines.

        Raises:
            SyntaxError: they are no Python.
        """
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        text = "\n" * (first - 1) + "\n".join(lines[first - 1 : node.end_lineno])
        flags = next(iter(self._flags()), 0)
        code: CodeType = compile(text, self.name, "exec", flags=flags, dont_inherit=True)
        return code

    def _flags(self) -> Iterator[int]:
        for functions in self._functions.values():
            for function in functions:
                yield function.__code__.co_flags & _FUTURE

    @contextlib.contextmanager
    def running(self, code: CodeType) -> Iterator[bool]:
        """Let the functions within a definition run the code of another one; whether any does."""
        before: list[tuple[FunctionType, CodeType]] = []
        try:
            for part in _parts(code):
                for function in self._functions.get((part.co_name, part.co_firstlineno), ()):
                    if len(function.__code__.co_freevars) == len(part.co_freevars):
                        before.append((function, function.__code__))
                        function.__code__ = part
            yield bool(before)
        finally:
            for function, old in before:
                function.__code__ = old


def _parts(code: CodeType) -> Iterator[CodeType]:
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield part
            yield from _parts(part)
