"""The lines of a subject that keep a gradient from what it is computed of."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from attnbench.cases.case import Case
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs
from attnbench.subject.tracing import calling_line

_DATA = Tensor.data.__get__  # type: ignore[attr-defined]  # torch has not typed it
_CUTS = {Tensor.detach: "detach", Tensor.detach_: "detach", _DATA: "data"}

_MOST_LINES = 8


class _Passing(TorchFunctionMode):
    """Lets gradients pass at some lines that stop them, or at all, and notes those in ``found``."""

    def __init__(self, lines: Collection[str] | None, found: dict[str, str]) -> None:
        super().__init__()
        self.lines, self.found = lines, found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        what = _CUTS.get(func, "" if torch.is_grad_enabled() else "no_grad")
        computes = any(isinstance(one, Tensor) for one in tree_leaves((args, kwargs)))
        line = calling_line() if what and computes else ""
        if line:
            self.found.setdefault(line, what)
        if not line or (self.lines is not None and line not in self.lines):
            return func(*args, **(kwargs or {}))
        with torch.enable_grad():
            return func(*args, **(kwargs or {})) if what == "no_grad" else args[0]


def passed_gradients(subject: Subject, case: Case, check: Callable[[Subject, Case], None]) -> str:
    """The fewest lines at which gradients have to pass for a check to hold, in words; or ``""``."""
    found: dict[str, str] = {}

    def holds(lines: Collection[str] | None) -> bool:
        watched = copy.copy(subject)

        def output(module: nn.Module, inputs: Inputs) -> Tensor:
            with _Passing(lines, found) if torch.is_grad_enabled() else contextlib.nullcontext():
                return subject.output(module, inputs)

        object.__setattr__(watched, "output", output)
        with contextlib.suppress(Exception, SystemExit):
            check(watched, case)
            return True
        return False

    needed = [*found] if holds(None) and len(found) <= _MOST_LINES else []
    for line in list(needed):
        others = [other for other in needed if other != line]
        needed = others if holds(others) else needed
    places = " and ".join(f"{found[line]} at {line}" for line in needed)
    return places and f"\n  it is right once gradients pass {places}"
