"""The lines of the user's code that run in some calls, and what they could read there."""

from __future__ import annotations

import contextlib
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

import attnbench

Kind = tuple[Any, ...]
"""What a value is; values of one kind may take the place of each other."""

_MOST_PARTS = 40
"""Most attributes of an object that are looked at."""

_APART = tuple(
    str(Path(place).resolve())
    for place in (
        sysconfig.get_path("stdlib"),
        Path(torch.__file__).parent,
        Path(attnbench.__file__).parent,
        Path(__file__).parent,
    )
)


class TracedLines:
    """Lines that ran, by file and number, each with the kinds of the names that it could read."""

    def __init__(self) -> None:
        self.ran: dict[str, dict[int, dict[str, Kind]]] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Note the lines that run in this context."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, value: Any) -> Any:
        return self._line if is_own(frame.f_code.co_filename) else None

    def _line(self, frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":
            lines = self.ran.setdefault(frame.f_code.co_filename, {})
            lines.setdefault(frame.f_lineno, {}).update(_kinds(frame))
        return self._line


def is_own(file: str) -> bool:
    """Whether a file is the user's own, and not that of an installed library."""
    installed = {"site-packages", "dist-packages", "attnbench_plugins"}
    if file.startswith("<") or installed & {*Path(file).parts}:
        return False
    return not str(Path(file).resolve()).startswith(_APART)


def _kinds(frame: FrameType) -> Mapping[str, Kind]:
    names = dict(frame.f_locals)
    owner = names.get("self")
    parts: dict[str, Any] = dict(vars(owner)) if hasattr(owner, "__dict__") else {}
    if isinstance(owner, nn.Module):
        for store in ("_parameters", "_buffers", "_modules"):
            parts |= parts.get(store) or {}
    kept = [part for part in parts if part[0] != "_" and part != "training"][:_MOST_PARTS]
    names |= {f"self.{part}": parts[part] for part in kept}
    kinds = {name: kind_of(value) for name, value in names.items()}
    return {name: kind for name, kind in kinds.items() if kind}


def kind_of(value: Any) -> Kind:
    """What a value is; empty if nothing can take its place."""
    if isinstance(value, Tensor):
        with contextlib.suppress(Exception):  # a nested or unfinished one has no axes
            sort = "floating" if value.dtype.is_floating_point else "whole"
            return ("tensor", value.dim(), "bool" if value.dtype == torch.bool else sort)
        return ()
    if isinstance(value, bool):
        return ("flag",)
    if isinstance(value, int):
        return ("count",)
    return ("number",) if isinstance(value, float) else ()
